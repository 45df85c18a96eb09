"""Maximum pooling of images on a CPU and its gradient, which count places within planes.

MaxPool tells where in the whole tensor a maximum is, which its gradient has to undo again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.kernels.layout import layout_of
from onnxtrain.kernels.nn.max_pool import add_to_places, are_inside, pooled
from onnxtrain.kernels.nn.parts import Rooms, parts
from onnxtrain.kernels.nn.pool import Shape, nothing_pooled, spatial, unpooled_shape
from onnxtrain.kernels.nn.window import resolve
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import CPU, FLOATS, OWN


@kernel("MaxPoolInPlanes", domain=OWN, on=CPU, outputs=2, T=FLOATS)
def max_pool_in_planes(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """y = maximum of each window, and where in its plane it was found."""
    sizes = spatial(x)
    window = resolve(sizes, kernel_shape, strides, dilations, pads, "NOTSET")
    if math.prod(sizes) > torch.iinfo(torch.int32).max:
        raise ValueError(f"planes of {sizes} are larger than 32-bit places can tell")
    if (empty := nothing_pooled(x, window, 0)) is not None:
        return empty, empty.to(torch.int32)
    y, places = pooled(x, window, window.begin, False)
    return y, places.to(torch.int32)


@kernel("MaxPoolInPlanesGrad", domain=OWN, on=CPU, host=["shape"], needs=["out_shape"], T=FLOATS)
def max_pool_in_planes_grad(
    dy: Tensor,
    places: Tensor,
    shape: Sequence[int] | None = None,
    *,
    kernel_shape: Sequence[int],
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    out_shape: Shape,
) -> Tensor:
    """dx[plane, places] += dy[plane], laid out like dy."""
    if dy.shape != places.shape:
        raise ValueError(f"dY {tuple(dy.shape)} and places {tuple(places.shape)} differ in shape")
    shape = tuple(shape) if shape is not None else unpooled_shape(dy, out_shape)
    window = resolve(shape[2:], kernel_shape, strides, dilations, pads, "NOTSET")
    if not dy.numel():
        return dy.new_zeros(shape)
    layout = layout_of(dy)
    grad, rooms = torch.empty(shape, dtype=dy.dtype, memory_format=layout), Rooms(layout)
    for data, made, narrow in parts(dy, grad, places):
        if not are_inside(narrow, shape[2:]):
            raise ValueError(f"there are places outside of planes of {shape[2:]}")
        wide = rooms.like(narrow, torch.int64).copy_(narrow)
        add_to_places(data, made, wide, window, ceil_mode=False)
    return grad
