"""Which of several ways to go through the steps of a plain recurrent layer is taken."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from torch import Tensor

from onnxtrain.kernels import blocks, fast
from onnxtrain.kernels.nn.rnn import fused, plain


def is_plain(
    names: Sequence[str] | None, default: Sequence[str], clip: float | None, lens: Tensor | None
) -> bool:
    """Whether a layer has the usual activations, no bound, and sequences of one length."""
    asked = [name.lower() for name in names or default]
    usual = asked == list(default) * (len(asked) // len(default))
    return usual and not (clip is not None and clip > 0) and lens is None


def quickest(x: Tensor, r: Tensor, *others: Tensor | None) -> ModuleType | None:
    """Launches of Triton's, few operations of torch's, or nothing: those that autograd follows."""
    given = [x, r, *(t for t in others if t is not None)]
    if not (x.shape[0] and x.shape[1]) or blocks.recorded(*given):
        return None
    return fused if _on_gpu(r) else plain


def _on_gpu(r: Tensor) -> bool:
    return fast.ready(r, smallest=1)
