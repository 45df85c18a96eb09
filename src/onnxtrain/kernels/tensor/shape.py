"""The same elements under another shape or order of axes, and what a tensor says of itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.axes import axes_of, axis_of, scalar
from onnxtrain.types import MS


@kernel("Identity", view="input")
def identity(input: Any) -> Any:
    """The input itself: a tensor, a sequence or an optional."""
    return input


@kernel("PassThrough", domain=MS, view="inputs", outputs=0)
def pass_through(*inputs: Any) -> Sequence[Any]:
    """Every output is its input; the node only makes others wait for all of them."""
    return inputs


@kernel("Group", domain=MS, host_out=[0])
def group(*input_tensors: Any) -> Tensor:
    """True, once all inputs exist."""
    return torch.ones((), dtype=torch.bool)


@kernel("Shape", host_out=[0])
def shape(data: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    """The dimensions from ``start`` up to but without ``end``."""
    return torch.tensor(list(data.shape)[start:end], dtype=torch.int64)


@kernel("Size", host_out=[0])
def size(data: Tensor) -> Tensor:
    """The number of elements."""
    return torch.tensor(math.prod(data.shape), dtype=torch.int64)


@kernel("Reshape", until=4, view="data", whole=True)
def reshape_1(
    data: Tensor, *, shape: tuple[int, ...] = (), consumed_inputs: tuple[int, ...] = ()
) -> Tensor:
    """The elements in the shape given as attribute."""
    return reshape(data, list(shape))


@kernel("Reshape", since=5, view="data", whole=True, host=["shape"])
def reshape(data: Tensor, shape: list[int], *, allowzero: int = 0) -> Tensor:
    """The elements in another shape; 0 keeps a dimension and -1 takes what is left."""
    if allowzero:
        if 0 in shape and -1 in shape:
            raise ValueError(f"shape {shape} has both 0 and -1, which allowzero=1 forbids")
        return data.reshape(shape)
    if any(n == 0 and i >= data.ndim for i, n in enumerate(shape)):
        raise ValueError(f"shape {shape} keeps a dimension that {list(data.shape)} does not have")
    sizes = [data.shape[i] if n == 0 else n for i, n in enumerate(shape)]
    return data.reshape(_left(data, shape, sizes) if data.numel() == 0 else sizes)


def _left(data: Tensor, shape: list[int], sizes: list[int]) -> list[int]:
    """The sizes with the -1 of an empty tensor made out from the dimensions that are not kept."""
    others = math.prod(n for i, n in enumerate(data.shape) if shape[i : i + 1] != [0])
    given = math.prod(n for n in shape if n > 0)
    return sizes if others % given else [others // given if n == -1 else n for n in sizes]


@kernel("Flatten", view="input", whole=True)
def flatten(input: Tensor, *, axis: int = 1) -> Tensor:
    """A matrix: the axes before ``axis`` become rows, the others columns."""
    rank = input.ndim
    if not -rank <= axis <= rank:
        raise ValueError(f"axis {axis} is not in valid range [-{rank},{rank}]")
    axis = axis + rank if axis < 0 else axis
    return input.reshape(math.prod(input.shape[:axis]), math.prod(input.shape[axis:]))


@kernel("Squeeze", until=12, view="data", whole=True)
def squeeze_1(data: Tensor, *, axes: tuple[int, ...] | None = None) -> Tensor:
    """Without the axes of size 1, given as attribute."""
    return squeeze(data, axes)


@kernel("Squeeze", since=13, view="data", whole=True, host=["axes"])
def squeeze(data: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """Without the given axes, which must have size 1, or without all of size 1."""
    if axes is None:
        return data.squeeze()
    drop = axes_of(axes, data.ndim)
    if wrong := [axis for axis in drop if data.shape[axis] != 1]:
        raise ValueError(f"cannot squeeze axes {wrong} of shape {list(data.shape)}: not of size 1")
    return data.squeeze(tuple(drop))


@kernel("Unsqueeze", until=12, view="data", whole=True)
def unsqueeze_1(data: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    """With new axes of size 1, given as attribute."""
    return unsqueeze(data, axes)


@kernel("Unsqueeze", since=13, view="data", whole=True, host=["axes"])
def unsqueeze(data: Tensor, axes: int | Sequence[int]) -> Tensor:
    """With new axes of size 1 at these places of the result."""
    axes = [axes] if isinstance(axes, int) else axes
    for axis in sorted(axes_of(axes, data.ndim + len(axes))):
        data = data.unsqueeze(axis)
    return data


@kernel("Transpose", view="data")
def transpose(data: Tensor, *, perm: tuple[int, ...] | None = None) -> Tensor:
    """Axis i of the result is axis perm[i] of the input; the axes are reversed by default."""
    return data.permute(tuple(reversed(range(data.ndim))) if perm is None else perm)


@kernel("Expand", since=8, view="input", host=["shape"])
def expand(input: Tensor, shape: list[int]) -> Tensor:
    """Broadcast to the shape; a dimension of 1 in ``shape`` keeps that of the input."""
    if min(shape, default=1) < 0:
        raise ValueError(f"cannot expand to {shape}: no dimension may be negative")
    lead = len(shape) - input.ndim
    kept = [-1 if n == 1 and i >= lead else n for i, n in enumerate(shape)]
    return input.expand([-1] * -lead + kept)


@kernel("Tile", until=5, host=["tiles", "axis"])
def tile_1(input: Tensor, tiles: Any, axis: Any) -> Tensor:
    """The input repeated along one axis."""
    repeats = [1] * input.ndim
    repeats[axis_of(int(scalar(axis)), input.ndim)] = int(scalar(tiles))
    return input.repeat(repeats)


@kernel("Tile", since=6, host=["repeats"])
def tile(input: Tensor, repeats: list[int]) -> Tensor:
    """The input repeated ``repeats[i]`` times along axis i."""
    if len(repeats) != input.ndim:
        raise ValueError(f"repeats {repeats} must have one entry per axis of {list(input.shape)}")
    return input.repeat(repeats)


@kernel("View", domain=MS, view="input", host=["shapes"], outputs=0, needs=["wanted"])
def view(input: Tensor, *shapes: list[int], wanted: tuple[bool, ...]) -> Sequence[Tensor | None]:
    """The flat elements cut in order into one tensor per shape."""
    sizes = [math.prod(shape) for shape in shapes]
    if sum(sizes) != input.numel() or len(shapes) != len(wanted):
        raise ValueError(
            f"shapes {list(shapes)} must have one entry per output ({len(wanted)}) "
            f"and {input.numel()} elements together"
        )
    parts = input.reshape(-1).split(sizes)
    return [
        part.view(shape) if use else None
        for part, shape, use in zip(parts, shapes, wanted, strict=True)
    ]
