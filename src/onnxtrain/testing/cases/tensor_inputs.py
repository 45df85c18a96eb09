"""Inputs and references that rows of several tensor operators share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from onnxtrain.testing.case import Input, derived, only
from onnxtrain.types import DataType

OLD_FLOATS = only(DataType.FLOAT, DataType.FLOAT16, DataType.DOUBLE)
"""Floating point types of opset versions before bfloat16."""
FLOAT = only(DataType.FLOAT)


def halves(*shape: int) -> Input:
    """Halves between -4 and 4, zeros among them: every element type holds something of them."""

    def make(generator: torch.Generator) -> Tensor:
        return torch.randint(-8, 8, shape, generator=generator).to(torch.float64) / 2

    return derived(make)


def wholes(*shape: int) -> Input:
    """Whole numbers from 0 to 7."""
    return derived(lambda g: torch.randint(0, 8, shape, generator=g).to(torch.float64))


def without_repeats(*shape: int, size: int, axis: int) -> Input:
    """Indices below ``size``, each at most once along the axis."""

    def make(generator: torch.Generator) -> Tensor:
        swapped = list(shape)
        swapped[axis], swapped[-1] = swapped[-1], swapped[axis]
        order = torch.rand([*swapped[:-1], size], generator=generator).argsort(-1)
        return order[..., : swapped[-1]].transpose(axis, -1).contiguous()

    return Input(make, DataType.INT64, grad=False)


def transposed(forward: Callable[[Tensor], Tensor], shape: Sequence[int], dy: Tensor) -> Tensor:
    """The gradient of a linear function by torch autograd, itself differentiable in ``dy``."""
    with torch.enable_grad():
        x = torch.zeros(tuple(shape), dtype=dy.dtype, requires_grad=True)
        y = forward(x)
        (dx,) = torch.autograd.grad(y, x, dy.reshape(y.shape), create_graph=True)
    return dx
