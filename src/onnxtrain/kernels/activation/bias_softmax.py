"""BiasSoftmax, and softmax fused with dropout in both directions."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from onnxtrain.kernels import fast
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
    if not data.numel():
        return torch.empty_like(data)
    rows, bias_rows = _rows_of_both(data, bias, axis)
    if quick := _fast(rows, bias_rows):
        found: Tensor = quick.bias_softmax(rows, bias_rows, bool(is_inner_broadcast))
        return found.view(data.shape)
    count, width = bias_rows.shape
    if is_inner_broadcast:
        total = rows.reshape(count, rows.shape[0] // count, width) + bias_rows.unsqueeze(1)
    else:
        total = rows.reshape(rows.shape[0] // count, count, width) + bias_rows
    return softmax(total).view(data.shape)


def _rows_of_both(data: Tensor, bias: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Data and bias as matrices of rows."""
    rows = as_rows(data, axis)
    bias_rows = bias.reshape(-1, rows.shape[1])
    if bias_rows.shape[0] == 0 or rows.shape[0] % bias_rows.shape[0]:
        raise ValueError(
            f"bias has {bias_rows.shape[0]} rows, allowed is a divisor of the {rows.shape[0]} "
            "rows of data"
        )
    return rows, bias_rows


def _fast(rows: Tensor, *others: Tensor) -> ModuleType | None:
    """The Triton kernels that do all in one pass, if they take these rows."""
    if fast.ready(rows, *others, smallest=1) and (quick := fast.load("bias_softmax")).takes(rows):
        return quick
    return None


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
    if rate > 0 and data.numel():
        rows, bias_rows = _rows_of_both(data, bias, axis)
        if (quick := _fast(rows, bias_rows)) and fast.load("dropout").takes(seed):
            inner = bool(is_inner_broadcast)
            three = quick.bias_softmax_dropout(rows, bias_rows, inner, rate, seed, rng)
            y, mask, soft = (t.view(data.shape) for t in three)
            return y, mask, soft
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
    given, soft = as_rows(dy, axis), as_rows(softmax_y, axis)
    if dy.numel() and mask.is_contiguous() and (quick := _fast(given, soft)):
        dx: Tensor = quick.softmax_dropout_grad(given, mask, soft, rate)
        return dx.view(dy.shape)
    # a rate of zero makes DropoutGrad pass over the mask; here the mask counts
    inner = dropout_grad(dy, mask, rate, True) if rate else drop(dy, mask, rate)
    return softmax_grad(as_rows(inner, axis), soft, axis=1).view(dy.shape)
