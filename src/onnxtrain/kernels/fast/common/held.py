"""Rows of scores that stay in the registers of their program, and sums of their exponentials.

A row is read in groups of 16 bytes wherever it begins, a chunk of groups after the other. One that
is too long for a program is cut into parts, whose programs exchange what they found.
"""

from __future__ import annotations

import triton
import triton.language as tl

from onnxtrain.kernels.fast.common.approx import LOG2_E, NATIVE, product
from onnxtrain.kernels.fast.common.exchange import of_row


@triton.jit
def raised(x, top, EXACT: tl.constexpr):
    """e^(x - top); 16-bit scores need no exact difference."""
    return tl.exp2((x - top) * LOG2_E) if EXACT else tl.exp2(x * LOG2_E - top * LOG2_E)


@triton.jit
def chunk(extent, n: tl.constexpr, SHIFTED: tl.constexpr, L: tl.constexpr, W: tl.constexpr):
    """Places of this program's n-th chunk, and which groups of it belong to the row as a whole."""
    lead, classes, groups, first = extent
    group = first + tl.arange(0, L)
    # the number of the chunk is added last, as a part of the instruction that loads or stores
    place = group[:, None] * W + tl.arange(0, W)[None, :] + n * (L * W)
    group += n * L
    if SHIFTED:
        there = (group * W >= lead) & (group * W + W <= lead + classes)
    else:
        there = group < groups
    return place, there[:, None]


@triton.jit
def read(row, extent, SHIFTED: tl.constexpr, N: tl.constexpr, L: tl.constexpr, W: tl.constexpr):
    """Scores of all chunks of this program."""
    held = ()
    for n in tl.static_range(N):
        place, there = chunk(extent, n, SHIFTED, L, W)
        held += (tl.load(row + place, there, float("-inf")),)  # type: ignore[assignment]
    return held


@triton.jit
def ends_of(extent, own, W: tl.constexpr):
    """Places in the first and the last group, and which of them are not in a whole one.

    Only those count that are among so many groups of this program's own.
    """
    lead, classes, groups, first = extent
    lane = tl.arange(0, 2 * W)
    place = tl.where(lane < W, lane, (groups - 2) * W + lane)
    group = place // W
    cut = (group * W < lead) | (group * W + W > lead + classes)
    # one group may be both the first and the last
    there = (place >= lead) & (place < lead + classes) & (lane < tl.minimum(groups, 2) * W)
    return place, there & cut & (group >= first) & (group < first + own)


@triton.jit
def _higher(a, b):
    """The larger ones of scores; without being told so, the compiler would widen 16-bit ones."""
    if NATIVE and a.dtype == tl.bfloat16:
        result = tl.inline_asm_elementwise(
            "max.bf16x2 $0, $1, $2;", "=r,r,r", [a, b], tl.bfloat16, is_pure=True, pack=2
        )
    elif NATIVE and a.dtype == tl.float16:
        result = tl.inline_asm_elementwise(
            "max.f16x2 $0, $1, $2;", "=r,r,r", [a, b], tl.float16, is_pure=True, pack=2
        )
    else:
        result = tl.maximum(a, b)
    return result


@triton.jit
def top_and_total(held, ends, EXACT: tl.constexpr, N: tl.constexpr):
    """m = max x and Σ e^(x - m) over a row: each lane has its own two until the end."""
    tops = held[0]
    for n in tl.static_range(1, N):
        tops = _higher(tops, held[n])
    top = tl.max(tops.to(tl.float32), 1)
    # a lane may have seen nothing but masked scores
    safe = tl.where(top == float("-inf"), 0.0, top)
    sums = raised(held[0].to(tl.float32), safe[:, None], EXACT)
    for n in tl.static_range(1, N):
        sums += raised(held[n].to(tl.float32), safe[:, None], EXACT)
    return _together(top, tl.sum(sums, 1), ends, EXACT)


@triton.jit
def _together(tops, sums, ends, EXACT: tl.constexpr):
    """The largest score of all lanes, and the sum."""
    top = tl.max(tops, 0)
    if ends is not None:
        top = tl.maximum(top, tl.max(ends, 0))
    safe = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(product(sums, raised(tops, safe, EXACT)), 0)
    if ends is not None:
        total += tl.sum(raised(ends, safe, EXACT), 0)
    return top, total


@triton.jit
def of_all(
    top,
    total,
    words,
    box,
    number,
    row,
    EXACT: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    CLUSTERED: tl.constexpr,
):
    """The largest score of all parts of a row, and the sum, in the same order for all of them."""
    S: tl.constexpr = PARTS if CLUSTERED else 1
    tops, sums = of_row(words, box, row, number % PARTS, top, total, PARTS, P, S)
    return _together(tops, sums, None, EXACT)


@triton.jit
def unshared(held):
    """The same 16-bit scores, of which no wider copies have been kept in registers since."""
    if NATIVE and held.dtype.primitive_bitwidth == 16:
        # there is one program along the last axis, which the compiler does not know
        zero = tl.full(held.shape, 0, tl.int32) + (tl.num_programs(2) - 1)
        held = tl.inline_asm_elementwise(
            "xor.b32 $0, $1, $2;", "=r,r,r,r", [held, zero], held.dtype, is_pure=True, pack=2
        )
    return held
