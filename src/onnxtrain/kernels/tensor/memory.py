"""Values in the order in which they lie in memory, and back."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from onnxtrain.kernels.registry import kernel
from onnxtrain.types import OWN


@kernel("InMemoryOrder", domain=OWN, outputs=2, host_out=[1], view={"x": 0})
def in_memory_order(x: Tensor) -> tuple[Tensor, Tensor]:
    """All elements as a vector, as they lie in memory, and the axes from the outermost to the last.

    Images with their channels last are not rearranged so. What has gaps is taken row by row.
    """
    strides = x.stride()
    axes = sorted(range(x.ndim), key=lambda axis: -strides[axis])
    ordered = x.permute(axes)
    if not ordered.is_contiguous():
        axes, ordered = list(range(x.ndim)), x
    return ordered.reshape(-1), torch.tensor(axes, dtype=torch.int64)


@kernel("FromMemoryOrder", domain=OWN, host=["axes", "shape"], view="flat")
def from_memory_order(flat: Tensor, axes: list[int], shape: list[int]) -> Tensor:
    """A shape's elements, the first ones of a vector, with axes that lie in memory as they did."""
    ordered = flat[: math.prod(shape)].view([shape[axis] for axis in axes])
    return ordered.permute([axes.index(axis) for axis in range(len(axes))])
