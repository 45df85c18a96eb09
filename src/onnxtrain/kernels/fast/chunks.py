"""Chunks of many tensors, each the work of one program.

The host lays out once which chunk of which tensor each program takes, and keeps that for tensors of
the same sizes. Where the tensors are is kept as well, and sent to the device when it changes.
"""

from __future__ import annotations

import collections
import functools
import itertools
import operator
from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.lasting import keep

CHUNK = 1024
WARPS = 4
READ_CHUNK = 4096
READ_WARPS = 4
"""The same for kernels that read one list alone, of which a program has more under way."""
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
_type_of = operator.attrgetter("dtype")


def aligned(*lists: Tensors) -> bool:
    """Whether every tensor begins where wide loads may begin, and each list has one known type."""
    types = [set(map(_type_of, items)) for items in lists]
    return all(len(found) == 1 and found <= KINDS.keys() for found in types) and dense(*lists)


def takes(*lists: Tensors, length: int | None = None) -> bool:
    """Whether one launch a combination of types serves these lists, in chunks of that length.

    While a step is recorded nothing can be cut anew: that would read memory of the host.
    """
    if not dense(*lists) or any(not set(map(_type_of, items)) <= KINDS.keys() for items in lists):
        return False
    if not _recorded(lists[0][0]):
        return True
    return all(_is_known(group, length or CHUNK) for group in groups(*lists))


def dense(*lists: Tensors) -> bool:
    """Whether every tensor is contiguous and begins where wide loads may begin."""
    return all(
        all(map(Tensor.is_contiguous, items))
        and functools.reduce(operator.or_, map(Tensor.data_ptr, items), 0) % 16 == 0
        for items in lists
    )


def layout(lists: Sequence[Tensors], length: int | None = None) -> Layout:
    """Addresses (list by list), chunks (tensor, first element, size), how many chunks."""
    sizes = _size_key(lists, length or CHUNK)
    chunks = _cuts.get(sizes)
    if chunks is None:
        chunks = _cut(*sizes)
        _remember(_cuts, sizes, chunks)
    else:
        _cuts.move_to_end(sizes)
    table = _table_of(*_address_key(lists))
    keep((table, chunks))
    return table, chunks, len(chunks)


def _address_key(lists: Sequence[Tensors]) -> tuple[tuple[int, ...], torch.device]:
    addresses = tuple(address for items in lists for address in map(Tensor.data_ptr, items))
    return addresses, lists[0][0].device


def _size_key(lists: Sequence[Tensors], length: int) -> tuple[tuple[int, ...], int, torch.device]:
    return tuple(map(Tensor.numel, lists[0])), length, lists[0][0].device


def _remember(known: Known, key: tuple[object, ...], value: Tensor) -> None:
    known[key] = value
    while len(known) > MOST_LAYOUTS:
        known.popitem(last=False)


def _recorded(tensor: Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _is_known(lists: Sequence[Tensors], length: int) -> bool:
    """Whether lists can be laid out while a step is recorded."""
    key = _address_key(lists)
    return _size_key(lists, length) in _cuts and (key in _tables or bool(_spares.get(len(key[0]))))


def _cut(sizes: tuple[int, ...], length: int, device: torch.device) -> Tensor:
    """Chunks; in memory behind them, which is the first one of each tensor, and how many."""
    chunks = [
        (item, start, size) for item, size in enumerate(sizes) for start in range(0, size, length)
    ]
    firsts = itertools.accumulate((-(-size // length) for size in sizes), initial=0)
    numbers = torch.tensor([*itertools.chain(*chunks), *firsts], dtype=torch.int64)
    return numbers.to(device)[: 3 * len(chunks)].view(-1, 3)


def _table_of(addresses: tuple[int, ...], device: torch.device) -> Tensor:
    """Addresses on a device. A recorded step copies them from pinned memory which it keeps."""
    key = (addresses, device)
    if device.type == "cuda":
        _fill(len(addresses))
    found = _tables.get(key)
    if found is not None:
        _tables.move_to_end(key)
        return found
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
    uniform = all(len(set(map(_type_of, items))) == 1 for items in lists)
    if uniform and all(map(Tensor.numel, lists[0])):
        yield list(lists)
        return
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
def chunks_of(chunks, count, item):
    """The first one of a tensor's chunks, of ``count`` in all, and the first one behind them."""
    first = chunks + 3 * count + item
    return tl.load(first).to(tl.int32), tl.load(first + 1).to(tl.int32)


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
