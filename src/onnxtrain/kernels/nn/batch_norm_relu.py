"""Batch normalization followed by Relu, and the gradient of both.

The gradient finds out again where the Relu was open, so what it closed need not be read.
"""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.nn import batch_norm
from onnxtrain.kernels.nn.batch_norm import Five
from onnxtrain.kernels.precision import acc
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, OWN


@kernel(
    "BatchNormRelu",
    domain=OWN,
    outputs=5,
    updates=["input_mean", "input_var"],
    view={"input_mean": 1, "input_var": 2},
    T=FLOATS,
)
def batch_norm_relu(
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    update: bool = False,
) -> Five:
    """Relu(BatchNormInternal(x)) in training, with what that returns besides."""
    given = (x, scale, b, input_mean, input_var)
    return _normalised(given, None, epsilon, momentum, update)


@kernel(
    "BatchNormAddRelu",
    domain=OWN,
    outputs=5,
    updates=["input_mean", "input_var"],
    view={"input_mean": 1, "input_var": 2},
    T=FLOATS,
)
def batch_norm_add_relu(
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    residual: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    update: bool = False,
) -> Five:
    """Relu(BatchNormInternal(x) + residual) in training, with what that returns besides."""
    given = (x, scale, b, input_mean, input_var)
    return _normalised(given, residual, epsilon, momentum, update)


def _normalised(
    given: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    residual: Tensor | None,
    epsilon: float,
    momentum: float,
    update: bool,
) -> Five:
    x, scale, b, input_mean, input_var = given
    batch_norm.check(*given)
    added = x if residual is None else residual
    if quick := batch_norm.fast_images(x, added, scale, b, input_mean, input_var):
        running = batch_norm.quick_running(x, input_mean, input_var, momentum, update)
        more = {"relu": True, "residual": residual, "running": running}
        y, mean, _, inverse = quick.train(x, scale, b, epsilon, **more)
        new = running[:2]
    else:
        y, mean, var, inverse = batch_norm.train(x, scale, b, epsilon)
        y = torch.relu(y if residual is None else y + residual)
        new = batch_norm.moved(x, (input_mean, input_var), (mean, var), momentum, update)
    return y, *new, mean.to(input_mean.dtype), inverse.to(input_var.dtype)


@kernel("BatchNormReluGrad", domain=OWN, outputs=3, T=FLOATS)
def batch_norm_relu_grad(
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    mean: Tensor,
    inverse: Tensor,
    *,
    epsilon: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """BatchNormalizationGrad of dY where (x - mean)·inverse·scale + b > 0, 0 elsewhere."""
    if quick := batch_norm.fast_images(x, dy, scale, b, mean, inverse):
        found: tuple[Tensor, Tensor, Tensor] = quick.grad(dy, x, scale, mean, inverse, b)
        return found
    sides = (1, -1, *[1] * (x.ndim - 2)) if x.ndim > 1 else (1,)
    work = acc(x.dtype)
    factor = scale.to(work) * inverse.to(work)
    summand = b.to(work) - mean.to(work) * factor
    is_open = x.to(work) * factor.reshape(sides) + summand.reshape(sides) > 0
    dy = torch.where(is_open, dy, 0)
    return batch_norm.batch_normalization_grad(dy, x, scale, mean, inverse, epsilon=epsilon)
