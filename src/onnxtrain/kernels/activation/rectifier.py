"""Functions that keep positive numbers and bend the others: Relu and its relatives."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.activation.native import backward, forward
from onnxtrain.kernels.precision import SIGNED, UNSIGNED, store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.axes import kept_size
from onnxtrain.types import FLOATS, INTEGERS, INTS, MS, OWN, DataType

aten = torch.ops.aten

_ALPHA = 0.009999999776482582
"""0.01 as the schema stores it, in float32."""


@kernel("Relu", since=6, T=FLOATS | SIGNED, inplace=["x"])
def relu(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Y = max(x, 0)."""
    return torch.clamp(x, min=0, out=out)


@kernel("ReluGrad", domain=MS, T=FLOATS, inplace=["dy"])
def relu_grad(dy: Tensor, x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """dX = 0 where x ≤ 0, else dY; x may be the input or the output of Relu."""
    return backward(aten.threshold_backward, dy, x, 0, out=out)


@kernel("Passes", domain=OWN, T=FLOATS)
def passes(x: Tensor) -> Tensor:
    """y = not x ≤ 0: where the gradient of a Relu is that of its result, and NaN too."""
    return (x <= 0).logical_not_()


@kernel("LeakyRelu", since=6, T=FLOATS, inplace=["x"])
def leaky_relu(x: Tensor, *, alpha: float = _ALPHA, out: Tensor | None = None) -> Tensor:
    """Y = x where x ≥ 0, else α·x."""
    return forward(aten.leaky_relu, x, alpha, out=out)


@kernel("LeakyReluGrad", domain=MS, T=FLOATS, inplace=["dy"])
def leaky_relu_grad(
    dy: Tensor, y: Tensor, *, alpha: float = _ALPHA, out: Tensor | None = None
) -> Tensor:
    """dX = dY where y > 0, else α·dY, from the output y (which tells the sign only if α > 0)."""
    return backward(aten.leaky_relu_backward, dy, y, alpha, False, out=out)


@kernel("PRelu", since=7, T=FLOATS | INTS)
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """Y = x where x ≥ 0, else slope·x."""
    return kept_size(torch.where(x < 0, x * slope, x), x, "slope")


@kernel("PRelu", since=9, T=UNSIGNED & {DataType.UINT32, DataType.UINT64})
def prelu_unsigned(x: Tensor, slope: Tensor) -> Tensor:
    """Y = x, which is never negative."""
    return x.clone()


@kernel("Elu", since=6, T=FLOATS, inplace=["x"])
def elu(x: Tensor, *, alpha: float = 1.0, out: Tensor | None = None) -> Tensor:
    """Y = x where x ≥ 0, else α·(eˣ - 1)."""
    return forward(aten.elu, x, alpha, out=out)


@kernel("Selu", since=6, T=FLOATS, inplace=["x"])
def selu(
    x: Tensor,
    *,
    alpha: float = 1.6732631921768188,
    gamma: float = 1.0507010221481323,
    out: Tensor | None = None,
) -> Tensor:
    """Y = γ·x where x > 0, else γ·α·(eˣ - 1)."""
    return forward(aten.elu, x, alpha, gamma, out=out)


@kernel("Celu", since=12, T=FLOATS, inplace=["x"])
def celu(x: Tensor, *, alpha: float = 1.0, out: Tensor | None = None) -> Tensor:
    """Y = max(0, x) + min(0, α·(e^(x/α) - 1))."""
    return forward(aten.elu, x, alpha, 1, 1 / alpha, out=out)


@kernel("ThresholdedRelu", since=10, T=FLOATS, inplace=["x"])
def thresholded_relu(x: Tensor, *, alpha: float = 1.0, out: Tensor | None = None) -> Tensor:
    """Y = x where x > α, else (also where x is NaN) 0."""
    return torch.where(x > alpha, x, x.new_zeros(()), out=out)


@kernel("Shrink", since=9, T=FLOATS | INTEGERS)
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    """Y = x + bias where x < -λ, x - bias where x > λ, else 0."""
    values = widen(x) if x.is_floating_point() else x.to(torch.float64)
    moved = torch.where(
        values < -lambd, values + bias, torch.where(values > lambd, values - bias, 0)
    )
    return store(moved, x)
