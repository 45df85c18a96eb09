"""FakeQuant: the rounding of quantization, felt in floating point."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.scalars import single
from onnxtrain.types import FLOATS, MS


@kernel("FakeQuant", domain=MS, T=FLOATS, host=["scale", "zero_point"], outputs=2)
def fake_quant(
    x: Tensor, scale: float, zero_point: float, *, quant_min: int = 0, quant_max: int = 255
) -> tuple[Tensor, Tensor]:
    """q = round(x/s) + z; Y = (q between the limits - z)·s; and where q is between the limits."""
    step, zero = single(scale), single(zero_point)
    if step == 0:
        raise ValueError("scale is 0, allowed is any other number")
    q = torch.round(x / step) + zero
    # A comparison with NaN is false, so NaN becomes the lower limit.
    limited = torch.where(q >= quant_min, q.clamp(max=quant_max), quant_min)
    return (limited - zero) * step, (q >= quant_min) & (q <= quant_max)


@kernel("FakeQuantGrad", domain=MS, T=FLOATS, inplace=["dy"])
def fake_quant_grad(dy: Tensor, gradient_mask: Tensor, *, out: Tensor | None = None) -> Tensor:
    """dX = dY where the mask is true, else 0."""
    return torch.where(gradient_mask, dy, dy.new_zeros(()), out=out)
