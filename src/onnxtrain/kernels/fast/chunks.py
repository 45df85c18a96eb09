"""Chunks of many tensors, each the work of one program.

The host lays out once which chunk of which tensor each program takes, and keeps that for tensors of
the same sizes. Where the tensors are is kept as well, and sent to the device when it changes.
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
SPARES = 4
"""Pieces of pinned memory, of each length, that wait for a step to be recorded."""
Known = collections.OrderedDict[tuple[object, ...], Tensor]
_tables: Known = collections.OrderedDict()
_cuts: Known = collections.OrderedDict()
_spares: dict[int, list[Tensor]] = {}


def aligned(*lists: Tensors) -> bool:
    """Whether every tensor begins where wide loads may begin, and each list has one type."""
    return all(len({t.dtype for t in items}) == 1 for items in lists) and dense(*lists)


def takes(*lists: Tensors) -> bool:
    """Whether one launch a combination of types serves these lists.

    While a step is recorded nothing can be cut anew: that would read memory of the host.
    """
    if not dense(*lists) or any(t.dtype not in KINDS for items in lists for t in items):
        return False
    return not _recorded(lists[0][0]) or all(map(_is_known, groups(*lists)))


def dense(*lists: Tensors) -> bool:
    """Whether every tensor is contiguous and begins where wide loads may begin."""
    return all(
        all(map(Tensor.is_contiguous, items))
        and all(address % 16 == 0 for address in map(Tensor.data_ptr, items))
        for items in lists
    )


def layout(lists: Sequence[Tensors]) -> Layout:
    """Addresses (list by list), chunks (tensor, first element, size), how many chunks."""
    sizes = _size_key(lists)
    if sizes not in _cuts:
        _remember(_cuts, sizes, _cut(*sizes))
    _cuts.move_to_end(sizes)
    table, chunks = _table_of(*_address_key(lists)), _cuts[sizes]
    keep((table, chunks))
    return table, chunks, len(chunks)


def _address_key(lists: Sequence[Tensors]) -> tuple[tuple[int, ...], torch.device]:
    addresses = tuple(address for items in lists for address in map(Tensor.data_ptr, items))
    return addresses, lists[0][0].device


def _size_key(lists: Sequence[Tensors]) -> tuple[tuple[int, ...], int, torch.device]:
    return tuple(map(Tensor.numel, lists[0])), CHUNK, lists[0][0].device


def _remember(known: Known, key: tuple[object, ...], value: Tensor) -> None:
    known[key] = value
    while len(known) > MOST_LAYOUTS:
        known.popitem(last=False)


def _recorded(tensor: Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _is_known(lists: Sequence[Tensors]) -> bool:
    """Whether lists can be laid out while a step is recorded."""
    key = _address_key(lists)
    return _size_key(lists) in _cuts and (key in _tables or bool(_spares.get(len(key[0]))))


def _cut(sizes: tuple[int, ...], length: int, device: torch.device) -> Tensor:
    chunks = [
        (item, start, size) for item, size in enumerate(sizes) for start in range(0, size, length)
    ]
    return torch.tensor(chunks, dtype=torch.int64).to(device)


def _table_of(addresses: tuple[int, ...], device: torch.device) -> Tensor:
    """Addresses on a device. A recorded step copies them from pinned memory which it keeps."""
    key = (addresses, device)
    if device.type == "cuda":
        _fill(len(addresses))
    if key in _tables:
        _tables.move_to_end(key)
        return _tables[key]
    table = torch.tensor(addresses, dtype=torch.int64)
    if device.type != "cuda":
        _remember(_tables, key, table)
        return table
    source = _spares[len(addresses)].pop()
    source.copy_(table)
    table = source.to(device, non_blocking=True)
    if torch.cuda.is_current_stream_capturing():
        keep(source)  # nobody else may use the table: it is empty until the step is replayed
    else:
        _remember(_tables, key, table)
    return table


def _fill(length: int) -> None:
    """Have pinned memory ready, unless a step is being recorded: it cannot be had then."""
    found = _spares.setdefault(length, [])
    while len(found) <= SPARES and not torch.cuda.is_current_stream_capturing():
        found.append(torch.empty(length, dtype=torch.int64, pin_memory=True))


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
