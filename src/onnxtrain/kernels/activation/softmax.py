"""Softmax, LogSoftmax and Hardmax, and the gradients of the first two.

Up to opset 12 they act on all axes from ``axis`` on as if these were one; from 13 on, on one axis.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS

aten = torch.ops.aten


def as_rows(x: Tensor, axis: int) -> Tensor:
    """The tensor as a matrix, whose columns are all axes from ``axis`` on."""
    if not -x.ndim <= axis <= x.ndim:
        raise ValueError(f"axis {axis} is not in valid range [-{x.ndim},{x.ndim - 1}]")
    first = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:first]), math.prod(x.shape[first:]))


@kernel("Softmax", until=12, T=FLOATS)
def softmax_rows(x: Tensor, *, axis: int = 1) -> Tensor:
    """Y = eˣ / Σ eˣ, the sum being over all axes from ``axis`` on."""
    return softmax(as_rows(x, axis), axis=1).view(x.shape)


@kernel("Softmax", since=13, T=FLOATS)
def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """Y = eˣ / Σ eˣ along an axis."""
    if fast.ready(x) and (quick := fast.load("softmax")).takes(x, axis):
        found: Tensor = quick.softmax(x, axis, log=False)
        return found
    return torch.softmax(x, axis)


@kernel("SoftmaxGrad", domain=MS, T=FLOATS)
def softmax_rows_grad(dy: Tensor, y: Tensor, *, axis: int = 1) -> Tensor:
    """dX = y·(dY - Σ y·dY), the sum being over all axes from ``axis`` on."""
    return softmax_grad(as_rows(dy, axis), as_rows(y, axis), axis=1).view(dy.shape)


@kernel("SoftmaxGrad_13", domain=MS, T=FLOATS)
def softmax_grad(dy: Tensor, y: Tensor, *, axis: int = -1) -> Tensor:
    """dX = y·(dY - Σ y·dY) along an axis, from the output y."""
    if fast.ready(dy, y) and (quick := fast.load("softmax_grad")).takes(y, axis):
        found: Tensor = quick.softmax_grad(dy, y, axis, log=False)
        return found
    dx: Tensor = aten._softmax_backward_data(dy, y, axis, dy.dtype)
    return dx


@kernel("LogSoftmax", until=12, T=FLOATS)
def log_softmax_rows(x: Tensor, *, axis: int = 1) -> Tensor:
    """Y = x - ln Σ eˣ, the sum being over all axes from ``axis`` on."""
    return log_softmax(as_rows(x, axis), axis=1).view(x.shape)


@kernel("LogSoftmax", since=13, T=FLOATS)
def log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """Y = x - ln Σ eˣ along an axis."""
    if fast.ready(x) and (quick := fast.load("softmax")).takes(x, axis):
        found: Tensor = quick.softmax(x, axis, log=True)
        return found
    return torch.log_softmax(x, axis)


@kernel("LogSoftmaxGrad", domain=MS, T=FLOATS)
def log_softmax_rows_grad(dy: Tensor, y: Tensor, *, axis: int = 1) -> Tensor:
    """dX = dY - e^y·Σ dY, the sum being over all axes from ``axis`` on."""
    return log_softmax_grad(as_rows(dy, axis), as_rows(y, axis), axis=1).view(dy.shape)


@kernel("LogSoftmaxGrad_13", domain=MS, T=FLOATS)
def log_softmax_grad(dy: Tensor, y: Tensor, *, axis: int = -1) -> Tensor:
    """dX = dY - e^y·Σ dY along an axis, from the output y."""
    if fast.ready(dy, y) and (quick := fast.load("softmax_grad")).takes(y, axis):
        found: Tensor = quick.softmax_grad(dy, y, axis, log=True)
        return found
    dx: Tensor = aten._log_softmax_backward_data(dy, y, axis, dy.dtype)
    return dx


@kernel("Hardmax", until=12, T=FLOATS)
def hardmax_rows(x: Tensor, *, axis: int = 1) -> Tensor:
    """Y = 1 at the first largest of all elements from ``axis`` on, else 0."""
    return hardmax(as_rows(x, axis), axis=1).view(x.shape)


@kernel("Hardmax", since=13, T=FLOATS)
def hardmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """Y = 1 at the first largest element along an axis, else 0."""
    if x.numel() == 0:
        return torch.empty_like(x)
    return torch.zeros_like(x).scatter_(axis, x.argmax(axis, keepdim=True), 1)
