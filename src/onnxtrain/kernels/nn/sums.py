"""Gradients together with their sums over rows, which are what a bias before them gets."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.activation.dropout import dropout_grad
from onnxtrain.kernels.reduction.columns import column_sums
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, OWN

_TRUE = (None, True)


@kernel("ConcatSum", domain=OWN, outputs=2, T=FLOATS)
def concat_sum(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Y = the inputs side by side along the last axis, and Σ Y over all other axes."""
    if fast.ready(*inputs, smallest=fast.SMALLEST // len(inputs)) and (
        quick := fast.load("sums")
    ).takes(inputs):
        pair: tuple[Tensor, Tensor] = quick.side_by_side(inputs)
        return pair
    y = torch.cat(inputs, -1)
    return y, column_sums(y)


@kernel("DropoutGradSum", domain=OWN, outputs=2, T=FLOATS, host=["ratio", "training_mode"])
def dropout_grad_sum(
    dy: Tensor,
    mask: Tensor,
    ratio: float | None = None,
    training_mode: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """DropoutGrad, and Σ dX over all axes but the last."""
    rate = 0.5 if ratio is None else float(ratio)
    whole = mask.dtype is torch.bool and mask.is_contiguous() and mask.shape == dy.shape
    if training_mode in _TRUE and 0 < rate < 1 and whole and fast.ready(dy):
        pair: tuple[Tensor, Tensor] = fast.load("sums").drop_grad(dy, mask, rate)
        return pair
    dx = dropout_grad(dy, mask, ratio, training_mode)
    return dx, column_sums(dx)
