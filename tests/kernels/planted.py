"""Kernels that are wrong on purpose: a sanitizer that finds nothing in them looks at nothing.

compute-sanitizer --tool racecheck python tests/kernels/planted.py _race
"""

from __future__ import annotations

import sys

import torch
import triton
import triton.language as tl

THREADS = 128


@triton.jit
def _beyond(x, distance):
    """Writes behind the end of a tensor."""
    tl.store(x + distance, 1.0)


@triton.jit
def _race(x, C: tl.constexpr):
    """Threads of several warps leave their numbers in one place of shared memory."""
    at = tl.arange(0, C)
    left = tl.inline_asm_elementwise(
        "{ .shared .b32 one; st.volatile.shared.b32 [one], $1; mov.b32 $0, $1; }",
        "=r,r",
        [at],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.store(x + at, left)


def main(name: str) -> None:
    x = torch.zeros(THREADS, dtype=torch.int32, device="cuda")
    if name == "_beyond":
        _beyond[(1,)](x.float(), 8 * THREADS, num_warps=1)
    else:
        _race[(1,)](x, THREADS, num_warps=4)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1])
