"""One operator at one shape, and what all of its rows share."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

BF16, F32 = torch.bfloat16, torch.float32
Call = Callable[[], Any]
Key = tuple[str, ...]
DEVICE = "cuda"
"""Where all tensors are."""
MOST_ON_CPU = 1 << 23
"""Elements of the largest tensors on a CPU, which are several times its cache."""
COMPILED = "torch.compile"
COMPILING = False
"""Whether torch.compile makes peers, too, which takes seconds for each."""


@dataclasses.dataclass
class Row:
    """One operator at one shape: ours, peers, the truth, the fewest bytes that must move.

    It can be recorded if its calls are all ``alike``: a replay does the same work once more.
    """

    name: str
    shape: str
    dtype: torch.dtype
    bytes: int
    ours: Call
    peers: dict[str, Call]
    truth: Call | None = None
    alike: bool = True

    @property
    def key(self) -> Key:
        """What tells it from other rows."""
        return self.name, self.shape, str(self.dtype).removeprefix("torch.")

    def compile(self) -> None:
        """Have torch compile its peer, which is left out where it cannot be."""
        if COMPILED in self.peers and not working({COMPILED: self.peers[COMPILED]}):
            del self.peers[COMPILED]


@dataclasses.dataclass(frozen=True)
class Choice:
    """Rows of these keys, or of any, in whose operator, shape and type a pattern is found."""

    keys: frozenset[Key] | None = None
    pattern: str = ""

    def __contains__(self, row: Row) -> bool:
        known = self.keys is None or row.key in self.keys
        return known and re.search(self.pattern, " ".join(row.key)) is not None


@dataclasses.dataclass
class Compiling:
    """What torch compiles for the shapes of a call when that is called first.

    More calls, each of what the one before gives, are operators of their own: compiled alone.
    """

    calls: tuple[Call, ...]
    compiled: list[Call] = dataclasses.field(default_factory=list)

    def __call__(self) -> Any:
        if not self.compiled:
            torch._dynamo.reset()  # rows of one function would count as shapes that change
            self.compiled = [torch.compile(call, dynamic=False) for call in self.calls]
        first, *others = self.compiled
        result = first()
        for other in others:
            result = other(result)
        return result


def draw(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def fitted(*shape: int) -> tuple[int, ...]:
    """A shape, on a CPU with as much of its first axis as does not take too long."""
    first, *rest = shape
    if DEVICE == "cpu":
        first = min(first, max(1, MOST_ON_CPU // math.prod(rest)))
    return (first, *rest)


def with_compiled(peers: dict[str, Call], call: Call, *more: Call) -> dict[str, Call]:
    """Peers, and what torch compiles of a call, or of several, if that was asked for."""
    return {**peers, COMPILED: Compiling((call, *more))} if COMPILING else peers


def working(peers: dict[str, Call]) -> dict[str, Call]:
    """Those peers that this build of torch can run, each being called once."""
    found = {}
    for name, call in peers.items():
        try:
            call()
        except (RuntimeError, NotImplementedError):
            continue
        found[name] = call
    return found
