"""Sums that several lanes of a warp leave in one place, though their last bits may differ.

A lane that adds a product to what it gets from another lane rounds only the sum, and the other lane
rounds that of its own product. Where both then store into the same shared memory, chance decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Instruction(NamedTuple):
    """An instruction of PTX: whether only some lanes have it, its name, and its operands."""

    guarded: bool
    name: str
    operands: list[list[str]]


_LINE = re.compile(r"^\s*(@!?%\w+\s+)?([a-z][\w.:]*)\s+(.*);", re.MULTILINE)
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
_REGISTER = re.compile(r"%\w+")


def instructions(ptx: str) -> Iterator[Instruction]:
    """All of a kernel, each operand as the registers that it names."""
    for guard, name, rest in _LINE.findall(ptx):
        operands = [_REGISTER.findall(operand) for operand in _OPERAND.findall(rest)]
        yield Instruction(bool(guard), name, operands)


def torn_sums(ptx: str) -> list[str]:
    """The registers that all lanes store into shared memory, and of which they may differ."""
    shuffled, products, differing, torn = set[str](), set[str](), set[str](), list[str]()
    for guarded, name, operands in instructions(ptx):
        if not operands:
            continue
        target, sources = {*operands[0]}, [{*operand} for operand in operands[1:]]
        if name.startswith("st.shared"):
            if not guarded and sources:
                torn += sorted(sources[-1] & differing)
            continue
        moved = name.startswith("mov") and any(source & shuffled for source in sources)
        if moved or name.startswith("shfl.sync.bfly"):
            shuffled |= target
        elif name in ("mul.f32", "mul.f64"):
            products |= target
        elif _adds_a_product(name, sources, shuffled, products):
            differing |= target
        if any(source & differing for source in sources):
            differing |= target
    return torn


def _adds_a_product(
    name: str, sources: list[set[str]], shuffled: set[str], products: set[str]
) -> bool:
    """Whether a lane adds its product to what it got, by one instruction or by two made one."""
    if name.startswith("fma.rn.f"):
        return bool(sources[2] & shuffled)
    adds = name in ("add.f32", "add.f64")
    return adds and any(a & shuffled and b & products for a, b in (sources, sources[::-1]))
