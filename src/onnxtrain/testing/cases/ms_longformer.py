"""Rows of com.microsoft's attention within windows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, given, normal
from onnxtrain.testing.cases.ms_attention import WIDE, attended, ints, joined, split
from onnxtrain.types import FLOATS, MS, DataType

SIZE, HEADS = 6, 2


def _projected(x: Tensor, w: Tensor, b: Tensor, heads: int) -> list[Tensor]:
    return [split(part, heads) for part in (x @ w + b).chunk(3, -1)]


def _attention(
    x: Tensor,
    w: Tensor,
    b: Tensor,
    mask: Tensor,
    gw: Tensor,
    gb: Tensor,
    flags: Tensor,
    *,
    num_heads: int,
    window: int,
) -> Tensor:
    """Each token on its own."""
    if w.ndim == 3:
        size = x.shape[2]
        w, gw = (torch.cat(list(each), 1) for each in (w, gw))
        b, gb = b[: 3 * size], torch.cat([gb, b[3 * size :]])
    sequences = []
    for tokens, closed, is_global in zip(x, mask, flags.tolist(), strict=True):
        local, others = _projected(tokens, w, b, num_heads), _projected(tokens, gw, gb, num_heads)
        rows = []
        for at in range(len(tokens)):
            q, k, v = others if is_global[at] else local
            seen = [
                abs(at - other) <= window or bool(is_global[at] or is_global[other])
                for other in range(len(tokens))
            ]
            y, *_ = attended(q[:, at : at + 1], k, v, bias=closed, allowed=torch.tensor(seen))
            rows.append(joined(y)[0] * (closed[at] >= 0))
        sequences.append(torch.stack(rows))
    return torch.stack(sequences)


def _row(
    name: str,
    mask: Sequence[Sequence[float]],
    flags: Sequence[Sequence[int]],
    *,
    window: int = 2,
    apart: bool = False,
    dtypes: frozenset[DataType] = WIDE,
) -> Case:
    if apart:
        shapes: list[tuple[int, ...]] = [(3, SIZE, SIZE), (5 * SIZE,), (3, SIZE, SIZE), (SIZE,)]
    else:
        shapes = [(SIZE, 3 * SIZE), (3 * SIZE,), (SIZE, 3 * SIZE), (3 * SIZE,)]
    w, b, gw, gb = (normal(*shape, scale=0.5) for shape in shapes)
    x = normal(len(mask), len(mask[0]), SIZE)
    closed = given(torch.tensor(mask, dtype=torch.float64)).no_grad()
    options = {"num_heads": HEADS, "window": window}
    return Case("LongformerAttention", [x, w, b, closed, gw, gb, ints(flags)], _attention, options,
                MS, dtypes=dtypes, name=name)  # fmt: skip


_OPEN, _HIDDEN = 0.0, -10000.0
CASES: list[Case] = [
    _row("local", [[_OPEN] * 8] * 2, [[0] * 8] * 2),
    _row("global", [[_OPEN] * 8] * 2, [[1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 1, 0]],
         dtypes=FLOATS),
    _row("masked", [[_OPEN] * 8, [_OPEN] * 3 + [_HIDDEN] * 5], [[1, *[0] * 7]] * 2),
    _row("apart", [[_OPEN] * 5 + [_HIDDEN]], [[1, 0, 0, 1, 0, 0]], window=1, apart=True),
]  # fmt: skip
