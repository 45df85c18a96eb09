"""Pairs of numbers that the programs of a cluster have of several columns, one pair of each.

Every program leaves its pairs in its own memory and sends them into that of all others, where a
barrier counts the bytes that have come (see ``cluster`` for a single pair).
"""

from __future__ import annotations

import triton
import triton.language as tl

HEAD = tl.constexpr(16)
"""Bytes before the pairs, in which the barrier is."""


@triton.jit
def opened(P: tl.constexpr, C: tl.constexpr):
    """Where this program's box is, for the pairs of P programs with C columns, and its own.

    There is room for those of 16 programs with 32 columns.
    """
    return tl.inline_asm_elementwise(
        """{
        .shared .align 16 .b8 boxes[4368];
        .reg .pred first;
        .reg .u32 thread;
        mov.u32 thread, %tid.x;
        mov.u32 $0, boxes;
        setp.eq.u32 first, thread, 0;
        @first mbarrier.init.shared.b64 [$0], 1;
        @first fence.mbarrier_init.release.cluster;
        @first mbarrier.arrive.expect_tx.shared.b64 _, [$0], $1;
        barrier.cluster.arrive.relaxed.aligned;
        }""",
        "=&r,r",
        [tl.full((), 8 * P * C, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _leave(places, firsts, seconds):
    """Write pairs into this program's own memory."""
    tl.inline_asm_elementwise(
        """
        st.shared.v2.f32 [$1], {$2, $3};
        mov.u32 $0, 0;
        """,
        "=&r,r,f,f",
        [places, firsts, seconds],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _send(box, own, programs, columns):
    """Send this program's pairs to all programs, and wait until those of all have come."""
    tl.inline_asm_elementwise(
        """{
        .reg .pred none, complete;
        .reg .u32 number, step, all, first, column, to, at, bar;
        .reg .b64 pair;
        barrier.cluster.wait.acquire.aligned;
        mov.u32 first, %cluster_ctarank;
        mul.lo.u32 first, first, $4;
        mul.lo.u32 all, $3, $4;
        mov.u32 number, %tid.x;
        mov.u32 step, %ntid.x;
        next:
        setp.ge.u32 none, number, all;
        @none bra again;
        div.u32 to, number, $4;
        rem.u32 column, number, $4;
        shl.b32 at, column, 3;
        add.u32 at, at, $2;
        ld.shared.b64 pair, [at];
        add.u32 at, first, column;
        shl.b32 at, at, 3;
        add.u32 at, at, 16;
        add.u32 at, at, $1;
        mapa.shared::cluster.u32 at, at, to;
        mapa.shared::cluster.u32 bar, $1, to;
        st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [at], pair, [bar];
        add.u32 number, number, step;
        bra next;
        again:
        mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 complete, [$1], 0;
        @!complete bra again;
        mov.u32 $0, 0;
        }""",
        "=&r,r,r,r,r",
        [box, own, programs, columns],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def swapped(box, firsts, seconds, P: tl.constexpr, C: tl.constexpr):
    """The pairs of all P programs of the cluster, each with C columns, as two tiles (P, C)."""
    column = tl.arange(0, C)
    own = box + (HEAD + 8 * P * C)
    _leave(own + 8 * column, firsts, seconds)
    tl.debug_barrier()
    _send(box, own, tl.full((), P, tl.int32), tl.full((), C, tl.int32))
    return tl.inline_asm_elementwise(
        "ld.shared.v2.f32 {$0, $1}, [$2];",
        "=f,=f,r",
        [box + HEAD + 8 * (tl.arange(0, P)[:, None] * C + column[None, :])],
        dtype=(tl.float32, tl.float32),
        is_pure=False,
        pack=1,
    )
