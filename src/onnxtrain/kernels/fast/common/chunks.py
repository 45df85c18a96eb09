"""Chunks of many tensors, each the work of one program.

The host lays out once which chunk of which tensor each program takes, and keeps that for tensors of
the same sizes. Where the tensors are is kept as well, and sent to the device when it changes.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.lasting import keep
from onnxtrain.kernels.rehearsal import rehearsing

CHUNK = 1024
WARPS = 4
READ_CHUNK = 4096
READ_WARPS = 4
"""The same for kernels that read one list alone, of which a program has more under way."""
KINDS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
Tensors = Sequence[Tensor]
SizeKey = tuple[tuple[int, ...], int, torch.device]
AddressKey = tuple[tuple[int, ...], torch.device]
MOST_LAYOUTS = 64
SPARES = 4
"""Pieces of pinned memory, of each length, that wait for a step to be recorded."""
Known = dict[tuple[object, ...], Tensor]
_tables: Known = {}
_cuts: Known = {}
_spares: dict[int, list[Tensor]] = {}
_type_of = operator.attrgetter("dtype")


class Part(NamedTuple):
    """Lists of one type each, cut into chunks.

    Attributes:
        kinds: The type of each list.
        tensors: How many tensors a list has.
        table: Where all of them begin, list by list.
        chunks: Number of the tensor, first element, and size of each chunk.
        programs: How many chunks there are.
    """

    kinds: tuple[tl.dtype, ...]
    tensors: int
    table: Tensor
    chunks: Tensor
    programs: int


def laid(*lists: Tensors) -> list[Part] | None:
    """The lists cut into chunks, a part for each combination of types; None if that cannot be.

    Tensors must be contiguous and begin where wide loads may begin; those without elements are left
    out. A single list is cut as if it is only read. While a step is recorded nothing can be cut
    anew: that would read memory of the host.
    """
    if not all(map(Tensor.is_contiguous, itertools.chain(*lists))):
        return None
    parts = [part_of(group, sizes) for group, sizes in groups(*lists)]
    return None if None in parts else parts  # type: ignore[return-value]


def part_of(
    lists: Sequence[Tensors], sizes: tuple[int, ...], more: tuple[int, ...] = ()
) -> Part | None:
    """The same for contiguous tensors with so many elements, each list being of one type.

    The table has more numbers behind the addresses if there are any, multiples of 16.
    """
    types = [items[0].dtype for items in lists]
    if not KINDS.keys() >= {*types}:
        return None
    length, device = READ_CHUNK if len(lists) == 1 else CHUNK, lists[0][0].device
    tensors = itertools.chain(*lists)
    # tensors of a rehearsal are nowhere
    places = tuple([0 for _ in tensors] if rehearsing() else map(Tensor.data_ptr, tensors))
    found = _layout((sizes, length, device), (places + more, device))
    if found is None:
        return None
    table, chunks = found
    return Part(tuple([KINDS[t] for t in types]), len(sizes), table, chunks, chunks.shape[0])


def _layout(sizes: SizeKey, places: AddressKey) -> tuple[Tensor, Tensor] | None:
    if rehearsing():
        return torch.tensor(places[0], device=places[1]), _cut(*sizes)
    if _recorded(places[1]) and not _is_known(sizes, places):
        return None
    chunks = _cuts.get(sizes)
    if chunks is None:
        chunks = _cut(*sizes)
        _remember(_cuts, sizes, chunks)
    table = table_of(*places)
    if table is None:
        return None
    keep((table, chunks))
    return table, chunks


def _remember(known: Known, key: tuple[object, ...], value: Tensor) -> None:
    known[key] = value
    while len(known) > MOST_LAYOUTS:
        del known[next(iter(known))]


def _recorded(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _is_known(sizes: SizeKey, places: AddressKey) -> bool:
    """Whether lists can be laid out while a step is recorded."""
    return sizes in _cuts and (places in _tables or bool(_spares.get(len(places[0]))))


def _cut(sizes: tuple[int, ...], length: int, device: torch.device) -> Tensor:
    """Chunks; in memory behind them, which is the first one of each tensor, and how many."""
    chunks = [
        (item, start, size) for item, size in enumerate(sizes) for start in range(0, size, length)
    ]
    firsts = itertools.accumulate((-(-size // length) for size in sizes), initial=0)
    numbers = torch.tensor([*itertools.chain(*chunks), *firsts], dtype=torch.int64)
    return numbers.to(device)[: 3 * len(chunks)].view(-1, 3)


def table_of(addresses: tuple[int, ...], device: torch.device) -> Tensor | None:
    """Addresses on a device; None if one of them is not where wide loads may begin.

    A recorded step copies them from pinned memory which it keeps; None if there is none left.
    """
    key = (addresses, device)
    if device.type == "cuda":
        _fill(len(addresses))
    found = _tables.get(key)
    if found is not None:
        return found
    if functools.reduce(operator.or_, addresses) % 16:
        return None
    table = torch.tensor(addresses, dtype=torch.int64)
    if device.type != "cuda":
        _remember(_tables, key, table)
        return table
    if not _spares[len(addresses)]:
        return None
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


def groups(*lists: Tensors) -> Iterator[tuple[Sequence[Tensors], tuple[int, ...]]]:
    """The lists cut so that each part has one type, and how many elements their tensors have.

    Tensors without elements are left out.
    """
    sizes = tuple(map(Tensor.numel, lists[0]))
    if 0 not in sizes and all(len(set(map(_type_of, items))) == 1 for items in lists):
        yield lists, sizes
        return
    found: dict[tuple[torch.dtype, ...], list[tuple[Tensor, ...]]] = {}
    for row in zip(*lists, strict=True):
        if row[0].numel():
            found.setdefault(tuple(t.dtype for t in row), []).append(row)
    for rows in found.values():
        yield [*zip(*rows, strict=True)], tuple(row[0].numel() for row in rows)


@triton.jit
def pointer_to(table, at, start, KIND: tl.constexpr):
    """Where a chunk of a tensor begins; one address for all, so that loads are wide."""
    address = tl.load(table + at) + start * (KIND.primitive_bitwidth // 8)
    return tl.multiple_of(address.to(tl.pointer_type(KIND)), 16)


@triton.jit
def place(chunks, number):
    """Of a chunk: which tensor, from which element on, and how many elements of it are left."""
    chunk = chunks + number * 3
    start = tl.load(chunk + 1)
    # no chunk is longer, and what is left of a tensor may not fit into 32 bits
    left = tl.minimum(tl.load(chunk + 2) - start, 1 << 30)
    return tl.load(chunk), start, left.to(tl.int32)


@triton.jit
def chunks_of(chunks, count, item):
    """The first one of a tensor's chunks, of ``count`` in all, and the first one behind them."""
    first = chunks + 3 * count + item
    return tl.load(first).to(tl.int32), tl.load(first + 1).to(tl.int32)


@triton.jit
def piece_of(whole, table, at, start):
    """Where a chunk begins of a tensor that is cut out of one piece of memory."""
    return tl.multiple_of(whole + (tl.load(table + at) + start), 16)


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
