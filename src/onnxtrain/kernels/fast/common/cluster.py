"""Programs that a GPU runs together, as a cluster, and that write into each other's memory.

All of them begin at once and their shared memory needs no clearing by a launch of its own, so a row
that has few enough parts is done sooner than with words in memory (see ``exchange``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime import driver

from onnxtrain.kernels.fast.common.launch import multiprocessors

LARGEST = 16
"""Programs of a cluster."""
GENERATIONS = (9, 10)
"""Major compute capabilities that have clusters of this size."""
FEWEST = 64
"""Multiprocessors of a whole device; one that was divided may not have room for a cluster."""


@functools.cache
def largest(device: torch.device) -> int:
    """How many programs a device runs as one cluster; 1 where there are no clusters."""
    if device.type != "cuda" or not triton.__version__.startswith("3.6."):
        return 1  # another version may describe launches otherwise
    generation, _ = torch.cuda.get_device_capability(device)
    has = generation in GENERATIONS and multiprocessors(device) >= FEWEST
    return LARGEST if has else 1


class InClusters:
    """A Triton function whose programs come in clusters, each of as many as an argument says.

    The grid counts clusters; programs have numbers one after the other in each. Triton would
    spread every block over a cluster, so the function is compiled as if there were none.
    """

    def __init__(self, function: Any, size: str = "PARTS") -> None:
        self.function, self.size = function, size
        self.params = getattr(function, "params", ())  # an interpreter has none

    def __getitem__(self, grid: tuple[int]) -> Callable[..., SimpleNamespace]:
        """A launch of so many clusters, which returns what launches the same kernel again."""
        return functools.partial(self._launch, *grid)

    def _launch(self, clusters: int, *arguments: Any, **options: int | None) -> SimpleNamespace:
        kernel = self.function.warmup(*arguments, grid=(clusters,), **options)
        warps, _, shared = kernel.packed_metadata
        packed = warps, arguments[self.function.arg_names.index(self.size)], shared
        run = kernel.run  # loads the kernel first
        stream = driver.active.get_current_stream(arguments[0].get_device())
        run(clusters, 1, 1, stream, kernel.function, packed, None, None, None, *arguments)
        return SimpleNamespace(run=run, function=kernel.function, packed_metadata=packed)


@triton.jit
def numbered(count, clusters):
    """Number of this cluster in the order in which clusters began; the last one clears the count.

    Its first program takes the number and sends it to all of them.
    """
    return tl.inline_asm_elementwise(
        """{
        .shared .align 8 .b8 note[16];
        .reg .pred first, tells, last, complete;
        .reg .u32 thread, rank, programs, mine, bar, to, number;
        mov.u32 thread, %tid.x;
        mov.u32 rank, %cluster_ctarank;
        mov.u32 programs, %cluster_nctarank;
        mov.u32 mine, note;
        add.u32 bar, mine, 8;
        setp.eq.u32 first, thread, 0;
        @first mbarrier.init.shared.b64 [bar], 1;
        @first fence.mbarrier_init.release.cluster;
        @first mbarrier.arrive.expect_tx.shared.b64 _, [bar], 4;
        barrier.cluster.arrive.relaxed.aligned;
        setp.eq.and.u32 tells, rank, 0, first;
        @tells atom.global.relaxed.gpu.add.u32 number, [$1], 1;
        add.u32 $0, number, 1;
        setp.eq.and.u32 last, $0, $2, tells;
        @last st.global.u32 [$1], 0;
        barrier.cluster.wait.acquire.aligned;
        setp.lt.u32 complete, thread, 32;
        @complete shfl.sync.idx.b32 number, number, 0, 31, 0xffffffff;
        setp.lt.u32 tells, thread, programs;
        setp.eq.and.u32 tells, rank, 0, tells;
        @tells mapa.shared::cluster.u32 to, mine, thread;
        @tells mapa.shared::cluster.u32 bar, bar, thread;
        @tells st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], number, [bar];
        add.u32 bar, mine, 8;
        again:
        mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 complete, [bar], 0;
        @!complete bra again;
        ld.shared.u32 $0, [mine];
        }""",
        "=&r,l,r",
        [count.to(tl.int64), clusters],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def opened():
    """Where this program's box is, into which each program of its cluster is going to put a pair.

    A barrier, which counts the bytes that have come, lies before the pairs.
    """
    return tl.inline_asm_elementwise(
        """{
        .shared .align 8 .b8 box[136];
        .reg .pred first;
        .reg .u32 thread, bytes;
        mov.u32 thread, %tid.x;
        mov.u32 bytes, %cluster_nctarank;
        mul.lo.u32 bytes, bytes, $1;
        mov.u32 $0, box;
        setp.eq.u32 first, thread, 0;
        @first mbarrier.init.shared.b64 [$0], 1;
        @first fence.mbarrier_init.release.cluster;
        @first mbarrier.arrive.expect_tx.shared.b64 _, [$0], bytes;
        barrier.cluster.arrive.relaxed.aligned;
        }""",
        "=&r,r",
        [tl.full((), 8, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def swapped(box, first, second, P: tl.constexpr):
    """The pairs of float32 that all P programs of the cluster have sent, this one among them."""
    pairs = tl.inline_asm_elementwise(
        """{
        .reg .pred sends, complete;
        .reg .u32 rank, count, thread, place, counter;
        barrier.cluster.wait.acquire.aligned;
        mov.u32 rank, %cluster_ctarank;
        mov.u32 count, %cluster_nctarank;
        mov.u32 thread, %tid.x;
        add.u32 $0, $1, 8;
        shl.b32 place, rank, 3;
        add.u32 place, place, $0;
        setp.lt.u32 sends, thread, count;
        @sends mapa.shared::cluster.u32 place, place, thread;
        @sends mapa.shared::cluster.u32 counter, $1, thread;
        @sends st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32
            [place], {$2, $3}, [counter];
        again:
        mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 complete, [$1], 0;
        @!complete bra again;
        }""",
        "=&r,r,f,f",
        [box, first, second],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    return tl.inline_asm_elementwise(
        "ld.shared.v2.f32 {$0, $1}, [$2];",
        "=f,=f,r",
        [pairs + 8 * tl.arange(0, P)],
        dtype=(tl.float32, tl.float32),
        is_pure=False,
        pack=1,
    )
