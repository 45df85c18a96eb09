"""Rows of com.microsoft's attention among blocks of positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, normal
from onnxtrain.testing.cases.ms_attention import WIDE, attended, ints, joined, split
from onnxtrain.testing.cases.ms_group_query import _angles, turned
from onnxtrain.types import FLOATS, MS, DataType

N, K, H = 4, 2, 6
"""Heads of queries and of keys, and features of a head."""
ROOM = 8
"""Positions of the cache, in blocks of two."""
ONE = [[[0], [0, 1], [1, 2], [0, 2, 3]]]
TWO = [[[0], [0, 1], [0, 2], [1, 3]], [[0], [1], [0, 1, 2], [0, 1, 2, 3]]]
"""For each layout and each row of blocks the columns that it sees."""


def listed(layouts: Sequence[Sequence[Sequence[int]]]) -> tuple[list[list[int]], list[list[int]]]:
    """Where the columns of each row begin, and the columns, filled up with -1."""
    starts = [[sum(map(len, rows[:i])) for i in range(len(rows) + 1)] for rows in layouts]
    most = max(start[-1] for start in starts)
    columns = [[column for row in rows for column in row] for rows in layouts]
    return starts, [row + [-1] * (most - len(row)) for row in columns]


def _sparse(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor,
    past_value: Tensor,
    rows: Tensor,
    columns: Tensor,
    total: Tensor,
    lengths: Tensor,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    *,
    do_rotary: int = 0,
    kv_num_heads: int,
    num_heads: int,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    sparse_block_size: int,
) -> tuple[Tensor, ...]:
    """Each sequence, head and query on its own."""
    size = kv_num_heads * past_key.shape[3]
    if key is None or value is None:
        query, key, value = query.split([query.shape[2] - 2 * size, size, size], 2)
    new, most = query.shape[1], int(total)
    results = []
    for b in range(len(query)):
        start = 0 if new == most else int(lengths[b]) - new
        q, k, v = split(query[b], num_heads), *(split(x[b], kv_num_heads) for x in (key, value))
        if do_rotary and cos is not None and sin is not None:
            at = torch.arange(start, start + new)
            q, k = (turned(x, cos[at], sin[at], rotary_interleaved) for x in (q, k))
        k, v = (
            torch.cat([past[b, :, :start], x, past[b, :, start + new :]], 1)
            for past, x in ((past_key, k), (past_value, v))
        )
        opened = [
            [
                _row(rows[h % len(rows)], columns[h % len(rows)], start + i, int(lengths[b]), most,
                     sparse_block_size)
                for i in range(new)
            ]
            for h in range(num_heads)
        ]  # fmt: skip
        groups = num_heads // kv_num_heads
        keys, values = (x[:, :most].repeat_interleave(groups, 0) for x in (k, v))
        y, *_ = attended(q, keys, values, scale=scale, allowed=torch.tensor(opened))
        results.append((joined(y), k, v))
    return tuple(torch.stack(parts) for parts in zip(*results, strict=True))


def _row(starts: Tensor, columns: Tensor, at: int, end: int, total: int, size: int) -> list[bool]:
    """Which keys the query at a position sees."""
    first, last = (int(starts[at // size + i]) for i in (0, 1))
    blocks = columns[first:last].tolist()
    return [key <= at and key < end and key // size in blocks for key in range(total)]


def _attention(
    name: str,
    layouts: Sequence[Sequence[Sequence[int]]],
    lengths: Sequence[int],
    total: int,
    *angles: Input,
    new: int,
    packed: bool = False,
    dtypes: frozenset[DataType] = WIDE,
    **attributes: Any,
) -> Case:
    parts: list[Input | None] = [normal(2, new, heads * H) for heads in (N, K, K)]
    if packed:
        parts = [normal(2, new, (N + 2 * K) * H), None, None]
    caches = [normal(2, K, ROOM, H)] * 2
    numbers = [ints(given) for given in (*listed(layouts), total, lengths)]
    options = {"num_heads": N, "kv_num_heads": K, "sparse_block_size": 2, **attributes}
    return Case("SparseAttention", [*parts, *caches, *numbers, *angles], _sparse, options, MS,
                outputs=3, dtypes=dtypes, name=name)  # fmt: skip


_FULL = _angles(9, 3)
CASES: list[Case] = [
    _attention("first", ONE, [6, 6], 6, new=6, dtypes=FLOATS),
    _attention("layouts-packed", TWO, [7, 6], 7, new=7, packed=True),
    _attention("next", TWO, [7, 5], 7, new=1, scale=0.3),
    _attention("rotary", ONE, [5, 5], 5, *_FULL, new=5, do_rotary=1),
    _attention("rotary-next", TWO, [8, 6], 8, *_FULL, new=1, do_rotary=1, rotary_interleaved=1),
]
