"""Chunks of many tensors, each the work of one program.

The host lays out once which chunk of which tensor each program takes; the layout is kept as long
as the tensors stay where they are.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.lasting import keep

CHUNK = 1024
WARPS = 4
KINDS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
Tensors = Sequence[Tensor]
Layout = tuple[Tensor, Tensor, int]
MOST_LAYOUTS = 64
_layouts: collections.OrderedDict[tuple[object, ...], Layout] = collections.OrderedDict()


def aligned(*lists: Tensors) -> bool:
    """Whether every tensor begins where wide loads may begin, and each list has one type."""
    return all(len({t.dtype for t in items}) == 1 for items in lists) and dense(*lists)


def takes(*lists: Tensors) -> bool:
    """Whether one launch a combination of types serves these lists.

    While a step is recorded nothing can be laid out anew: that would read memory of the host.
    """
    if not dense(*lists) or any(t.dtype not in KINDS for items in lists for t in items):
        return False
    recorded = lists[0][0].is_cuda and torch.cuda.is_current_stream_capturing()
    return not recorded or all(_key(group) in _layouts for group in groups(*lists))


def dense(*lists: Tensors) -> bool:
    """Whether every tensor is contiguous and begins where wide loads may begin."""
    return all(
        all(map(Tensor.is_contiguous, items))
        and all(address % 16 == 0 for address in map(Tensor.data_ptr, items))
        for items in lists
    )


def layout(lists: Sequence[Tensors]) -> Layout:
    """Addresses (list by list), chunks (tensor, first element, size), how many chunks."""
    key = _key(lists)
    if key not in _layouts:
        _layouts[key] = _laid_out(*key)
        while len(_layouts) > MOST_LAYOUTS:
            _layouts.popitem(last=False)
    _layouts.move_to_end(key)
    keep(_layouts[key])
    return _layouts[key]


def _key(
    lists: Sequence[Tensors],
) -> tuple[tuple[int, ...], tuple[int, ...], int, torch.device]:
    addresses = tuple(address for items in lists for address in map(Tensor.data_ptr, items))
    return addresses, tuple(map(Tensor.numel, lists[0])), CHUNK, lists[0][0].device


def _laid_out(
    addresses: tuple[int, ...], sizes: tuple[int, ...], length: int, device: torch.device
) -> Layout:
    chunks = [
        (item, start, size) for item, size in enumerate(sizes) for start in range(0, size, length)
    ]
    table = torch.tensor(addresses, dtype=torch.int64).to(device)
    return table, torch.tensor(chunks, dtype=torch.int64).to(device), len(chunks)


def groups(*lists: Tensors) -> Iterator[list[Tensors]]:
    """The lists cut so that each part has one type; tensors without elements are left out."""
    found: dict[tuple[torch.dtype, ...], list[tuple[Tensor, ...]]] = {}
    for row in zip(*lists, strict=True):
        if row[0].numel():
            found.setdefault(tuple(t.dtype for t in row), []).append(row)
    for rows in found.values():
        yield list(zip(*rows, strict=True))


@triton.jit
def pointer_to(table, at, start, KIND: tl.constexpr):
    """Where a chunk of a tensor begins; one address for all, so that loads are wide."""
    address = tl.load(table + at) + start * (KIND.primitive_bitwidth // 8)
    return tl.multiple_of(address.to(tl.pointer_type(KIND)), 16)


@triton.jit
def place(chunks, C: tl.constexpr):
    """Which tensor, from which element on, and how many elements of it are left."""
    chunk = chunks + tl.program_id(0) * 3
    start = tl.load(chunk + 1)
    return tl.load(chunk), start, (tl.load(chunk + 2) - start).to(tl.int32)


@triton.jit
def read(pointer, left, WHOLE: tl.constexpr, C: tl.constexpr):
    """A chunk in float32; a whole one is read without a mask, which would make loads narrow."""
    at = tl.arange(0, C)
    value = tl.load(pointer + at) if WHOLE else tl.load(pointer + at, at < left, 0.0)
    return value.to(tl.float32)


@triton.jit
def write(pointer, value, left, WHOLE: tl.constexpr, C: tl.constexpr):
    """Store a chunk, rounded to the type of its tensor."""
    at = tl.arange(0, C)
    value = value.to(pointer.dtype.element_ty)
    if WHOLE:
        tl.store(pointer + at, value)
    else:
        tl.store(pointer + at, value, at < left)


@triton.jit
def read_any(pointer, left, C: tl.constexpr):
    """A chunk in float32, whole or not."""
    if left >= C:
        value = read(pointer, left, True, C)
    else:
        value = read(pointer, left, False, C)
    return value
