"""BiasSoftmax, and softmax fused with dropout in both directions."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.activation.dropout import dropout_grad, dropped
from onnxtrain.kernels.activation.mask import drop, keep_mask, rate_of
from onnxtrain.kernels.activation.softmax import as_rows, softmax, softmax_grad
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS


@kernel("BiasSoftmax", domain=MS, T=FLOATS)
def bias_softmax(data: Tensor, bias: Tensor, *, axis: int = 1, is_inner_broadcast: int) -> Tensor:
    """Y = Softmax(data + bias) over all axes from ``axis`` on.

    With r rows of data to each row of bias, row i takes the bias row i // r (inner broadcast), or
    i modulo the number of bias rows (outer).
    """
    rows = as_rows(data, axis)
    if not data.numel():
        return torch.empty_like(data)
    width = rows.shape[1]
    bias_rows = bias.reshape(-1, width)
    if bias_rows.shape[0] == 0 or rows.shape[0] % bias_rows.shape[0]:
        raise ValueError(
            f"bias has {bias_rows.shape[0]} rows, allowed is a divisor of the {rows.shape[0]} "
            "rows of data"
        )
    count = bias_rows.shape[0]
    if is_inner_broadcast:
        total = rows.reshape(count, rows.shape[0] // count, width) + bias_rows.unsqueeze(1)
    else:
        total = rows.reshape(rows.shape[0] // count, count, width) + bias_rows
    return softmax(total).view(data.shape)


@kernel("BiasSoftmaxDropout", domain=MS, T=FLOATS, host=["ratio"], needs=["rng"], outputs=3)
def bias_softmax_dropout(
    data: Tensor,
    bias: Tensor,
    ratio: float | None = None,
    *,
    axis: int = 1,
    is_inner_broadcast: int,
    seed: int | None = None,
    rng: torch.Generator | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """s = BiasSoftmax(data, bias); Y = s / (1 - ratio) where the mask is true; also mask and s."""
    rate = rate_of(ratio)
    found = bias_softmax(data, bias, axis=axis, is_inner_broadcast=is_inner_broadcast)
    if rate == 0:
        return found.clone(), keep_mask(found, rate, seed, rng), found
    return (*dropped(found, rate, seed, rng), found)


@kernel("SoftmaxDropoutGrad", domain=MS, T=FLOATS, host=["ratio"])
def softmax_dropout_grad(
    dy: Tensor, mask: Tensor, softmax_y: Tensor, ratio: float | None = None, *, axis: int
) -> Tensor:
    """dX = SoftmaxGrad(DropoutGrad(dY, mask, ratio), y), over all axes from ``axis`` on."""
    rate, mask = rate_of(ratio), mask.reshape(dy.shape)
    # a rate of zero makes DropoutGrad pass over the mask; here the mask counts
    inner = dropout_grad(dy, mask, rate, True) if rate else drop(dy, mask, rate)
    return softmax_grad(as_rows(inner, axis), as_rows(softmax_y, axis), axis=1).view(dy.shape)
