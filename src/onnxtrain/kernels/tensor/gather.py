"""Slices and elements picked by an index tensor along one axis, with their gradients."""

from __future__ import annotations

import contextlib
import math

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.precision import acc, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.axes import axis_of
from onnxtrain.kernels.tensor.indices import add_at, sum_rows, wrapped
from onnxtrain.kernels.tensor.movable import movable, moved, picked
from onnxtrain.types import FLOATS, INTS, MS, OWN


@kernel("Gather", Tind=INTS)
def gather(data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """out[b, k, e] = data[b, indices[k], e], with b before the axis and e after it."""
    axis = axis_of(axis, data.ndim)
    index = wrapped(indices, data.shape[axis]).reshape(-1)
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    return picked(data, axis, index).reshape(shape)


@kernel("ShrunkenGather", domain=MS, Tind=INTS)
def shrunken_gather(data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """Gather of at most as many slices as there are; on a GPU, indices out of range give zeros."""
    if data.ndim == 0:
        raise ValueError("data tensor must have rank >= 1")
    if indices.ndim != 1:
        raise ValueError(f"ShrunkenGather only support 1D indices, got {indices.ndim}-D indices")
    axis = axis_of(axis, data.ndim)
    size = data.shape[axis]
    if indices.numel() > size:
        raise ValueError(f"{indices.numel()} indices are more than axis {axis} has slices ({size})")
    result = gather(data, indices, axis=axis)
    if result.device.type == "cpu":
        return result
    outside = ~_in_range(indices, size).reshape(-1, *[1] * (data.ndim - axis - 1))
    return movable(result).masked_fill_(outside, 0).view(result.dtype)


@kernel("GatherGrad", domain=MS, host=["shape"], T=FLOATS, Tind=INTS)
def gather_grad(shape: list[int], indices: Tensor, dy: Tensor, *, axis: int = 0) -> Tensor:
    """dx[b, indices[k], e] += dy[b, k, e], always in the same order.

    dy may be that of a value that the slices were broadcast to: onnxruntime-training 1.19.2 leaves
    out the sum over such axes where it does not know their sizes, as for tables of positions.
    """
    axis = axis_of(axis, len(shape))
    outer, size, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    picked_shape = (*shape[:axis], *indices.shape, *shape[axis + 1 :])
    if dy.shape != picked_shape and _broadcasts(picked_shape, dy.shape):
        dy = dy.sum_to_size(picked_shape)
    if outer * indices.numel() * inner != dy.numel():
        raise ValueError(
            f"dY has {dy.numel()} elements, a gather of {list(indices.shape)} indices "
            f"along axis {axis} of {shape} has {outer * indices.numel() * inner}"
        )
    if dy.numel() == 0:
        return dy.new_zeros(shape)
    if indices.numel() == 1:
        place = wrapped(indices, size).long().reshape(1)
        return (
            dy.new_zeros(outer, size, inner)
            .index_copy_(1, place, dy.reshape(outer, 1, inner))
            .view(shape)
        )
    if outer == 1 and fast.ready(dy):
        places = indices.reshape(-1).contiguous()
        total: Tensor = fast.load("gather.segments").sum_rows(places, dy.view(-1, inner), size)
        return total.view(shape)
    rows = dy.reshape(outer, indices.numel(), inner).transpose(0, 1)
    total = sum_rows(
        wrapped(indices, size).long().reshape(-1),
        rows.reshape(indices.numel(), outer * inner),
        size,
        ordered=True,
    )
    return total.reshape(size, outer, inner).transpose(0, 1).reshape(shape)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether a tensor of the one shape can be broadcast to the other."""
    behind = to[len(to) - len(shape) :]
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(shape, behind, strict=True))


@kernel("GatherGradAdd", domain=OWN, T=FLOATS, Tind=INTS, inplace=["base"])
def gather_grad_add(
    indices: Tensor, dy: Tensor, base: Tensor, *, out: Tensor | None = None
) -> Tensor:
    """base, with dy[k] added to its row indices[k], always in the same order."""
    if out is not None and fast.ready(dy, out) and indices.numel() > 1:
        places, width = indices.reshape(-1).contiguous(), math.prod(base.shape[1:])
        rows = out.view(base.shape[0], width)
        fast.load("gather.segments").sum_rows(places, dy.view(-1, width), len(rows), rows)
        return out
    rows = gather_grad(list(base.shape), indices, dy)
    total = widen(base) + rows
    return total.to(base.dtype) if out is None else out.copy_(total)


@kernel("GatherElements", since=11, Tind=INTS)
def gather_elements(data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """out[m] = data[m with m[axis] replaced by indices[m]]."""
    axis = axis_of(axis, data.ndim)
    _check_fits(list(data.shape), indices, axis)
    if _checked_by_torch(indices):
        with contextlib.suppress(RuntimeError):
            return moved(movable(data).gather(axis, indices), data.dtype)
    index = wrapped(indices, data.shape[axis]).long()
    return moved(movable(data).gather(axis, index), data.dtype)


@kernel(
    "GatherElementsGrad",
    domain=MS,
    host=["shape"],
    needs=["deterministic"],
    T=FLOATS,
    Tind=INTS,
)
def gather_elements_grad(
    dy: Tensor, shape: list[int], indices: Tensor, *, axis: int = 0, deterministic: bool
) -> Tensor:
    """dx[m with m[axis] replaced by indices[m]] += dy[m].

    Indices out of range are an error on the CPU and add nothing on a GPU.
    """
    axis = axis_of(axis, len(shape))
    if dy.shape != indices.shape:
        raise ValueError(
            f"indices and dY must have the same shape, "
            f"got {list(indices.shape)} and {list(dy.shape)}"
        )
    _check_fits(shape, indices, axis)
    if math.prod(shape) == 0 or dy.numel() == 0:
        return dy.new_zeros(shape)
    if axis == len(shape) - 1 and _fast(dy, indices, shape, deterministic):
        rows = math.prod(shape[:-1])
        added: Tensor = fast.load("scatter").add_at_last(
            dy, indices, rows, shape[-1], repeatable=deterministic
        )
        return added.view(shape)
    dx = dy.new_zeros(shape, dtype=acc(dy.dtype))
    if _checked_by_torch(indices):
        with contextlib.suppress(RuntimeError):
            add_at(dx, axis, indices, widen(dy), ordered=deterministic)
            return dx.to(dy.dtype)
        dx.zero_()
    if dy.device.type != "cpu":
        dy = dy.masked_fill(~_in_range(indices, shape[axis]), 0)
    index = wrapped(indices, shape[axis]).long()
    add_at(dx, axis, index, widen(dy), ordered=deterministic)
    return dx.to(dy.dtype)


def _checked_by_torch(indices: Tensor) -> bool:
    """Whether torch refuses negative ones and those out of range, so that none need be looked for.

    Looking makes a gradient take a third longer.
    """
    on_cpu = indices.device.type == "cpu" and indices.dtype is torch.int64
    return on_cpu and not torch.compiler.is_compiling()


def _fast(dy: Tensor, indices: Tensor, shape: list[int], deterministic: bool) -> bool:
    """Whether Triton may add the values: whole rows, and repeatably if they must be."""
    whole = list(indices.shape[:-1]) == shape[:-1] and indices.is_contiguous()
    smallest = 0 if math.prod(shape) >= fast.SMALLEST else fast.SMALLEST
    return (
        whole
        and fast.ready(dy, smallest=smallest)
        and (not deterministic or fast.load("scatter").repeats(indices.shape[-1], shape[-1]))
    )


def _in_range(indices: Tensor, size: int) -> Tensor:
    return (indices >= -size) & (indices < size)


def _check_fits(shape: list[int], indices: Tensor, axis: int) -> None:
    """All but the axis address a block that starts at 0 and lies inside of the data."""
    fits = indices.ndim == len(shape) and all(
        n <= shape[i] for i, n in enumerate(indices.shape) if i != axis
    )
    if not fits:
        raise ValueError(
            f"indices of shape {list(indices.shape)} do not fit data of shape {shape}: "
            f"ranks must agree, and sizes except along axis {axis} must not be larger"
        )
