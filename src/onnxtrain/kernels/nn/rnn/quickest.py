"""Which of several ways to go through the steps of a plain recurrent layer is taken."""

from __future__ import annotations

from types import ModuleType

from torch import Tensor

from onnxtrain.kernels.nn.rnn import fused, plain


def quickest(x: Tensor, r: Tensor, *others: Tensor | None) -> ModuleType | None:
    """Launches of Triton's, few operations of torch's, or nothing: those that autograd follows."""
    if fused.takes(x, r, *others):
        return fused
    return plain if plain.takes(x, r, *others) else None
