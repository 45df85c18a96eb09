"""Words of shared memory that all threads of a program add to; Triton has no operations for these.

Each operation is an instruction in PTX for each element of a block; what it gives is of no use.
Elements that several threads hold would be added by each of them, so a block must have at least as
many elements as the program has threads. Threads see what others did after ``tl.debug_barrier()``.
Where kernels are interpreted, a tensor of int32 stands in for shared memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from onnxtrain.kernels.fast import interpreted

MOST_WORDS = 12 << 10
"""A program may declare 48 KB."""
PTX = tl.constexpr(not interpreted())


@triton.jit
def reserve(stand_in, WORDS: tl.constexpr):
    """Address of so many words that this program has for itself; a kernel does this once."""
    if not PTX:
        return stand_in
    asm: tl.constexpr = f".shared .align 16 .b32 words[{WORDS}]; mov.u32 $0, words;"
    return tl.inline_asm_elementwise(asm, "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def word(words, place):
    """Address of the word at a place."""
    return words + place * (4 if PTX else 1)


@triton.jit
def fill(words, WORDS: tl.constexpr, N: tl.constexpr):
    """Write the same number to all words, to four at a time."""
    if PTX:
        asm: tl.constexpr = f"st.shared.v4.b32 [$1], {{{N}, {N}, {N}, {N}}}; mov.u32 $0, 0;"
        four = words + 16 * tl.arange(0, WORDS // 4)
        tl.inline_asm_elementwise(asm, "=r,r", [four], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.store(words + tl.arange(0, WORDS), N)


@triton.jit
def read(address):
    """The words at some addresses."""
    if not PTX:
        return tl.load(address)
    asm: tl.constexpr = "ld.shared.b32 $0, [$1];"
    return tl.inline_asm_elementwise(asm, "=r,r", [address], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def add(address, value):
    """Add whole numbers, whose sum is the same in any order."""
    if PTX:
        _change("red.shared.add.s32 [$1], $2;", address, value)
    else:
        tl.atomic_add(address, value)


@triton.jit
def add_some(address, value):
    """Add whole numbers of which most are zero."""
    if PTX:
        _change(
            "{ .reg .pred some; setp.ne.s32 some, $2, 0; @some red.shared.add.s32 [$1], $2; }",
            address,
            value,
        )
    else:
        tl.atomic_add(address, value)


@triton.jit
def raise_to(address, value):
    """Replace words by larger numbers."""
    if PTX:
        _change("red.shared.max.s32 [$1], $2;", address, value)
    else:
        tl.atomic_max(address, value)


@triton.jit
def _change(INSTRUCTION: tl.constexpr, address, value):
    asm: tl.constexpr = INSTRUCTION + " mov.u32 $0, 0;"
    both = [address, value]
    tl.inline_asm_elementwise(asm, "=r,r,r", both, dtype=tl.int32, is_pure=False, pack=1)
