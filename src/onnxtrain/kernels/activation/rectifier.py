"""Functions that keep positive numbers and bend the others: Relu and its relatives."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.kernels.precision import SIGNED, WIDE_UNSIGNED, store
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, INTEGERS, INTS, MS

aten = torch.ops.aten


@kernel("Relu", since=6, T=FLOATS | SIGNED, inplace=["x"])
def relu(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Y = max(x, 0)."""
    return torch.clamp(x, min=0, out=out)


@kernel("ReluGrad", domain=MS, T=FLOATS, inplace=["dy"])
def relu_grad(dy: Tensor, x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """dX = dY where x > 0, else 0; x may be the input or the output of Relu."""
    out = torch.empty_like(dy) if out is None else out
    aten.threshold_backward.grad_input(dy, x, 0, grad_input=out)
    return out


@kernel("LeakyRelu", since=6, T=FLOATS, inplace=["x"])
def leaky_relu(x: Tensor, *, alpha: float = 0.009999999776482582, out: Tensor | None = None) -> Tensor:
    """Y = x where x ≥ 0, else α·x."""
    if out is None:
        return functional.leaky_relu(x, alpha)
    return functional.leaky_relu(out.copy_(x) , alpha, inplace=True)


@kernel("LeakyReluGrad", domain=MS, T=FLOATS, inplace=["dy"])
def leaky_relu_grad(
    dy: Tensor, y: Tensor, *, alpha: float = 0.009999999776482582, out: Tensor | None = None
) -> Tensor:
    """dX = dY where y > 0, else α·dY, from the output y (so α must be positive)."""
    out = torch.empty_like(dy) if out is None else out
    aten.leaky_relu_backward.grad_input(dy, y, alpha, False, grad_input=out)
    return out
