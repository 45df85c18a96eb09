"""One operator at one shape, and what all of its rows share."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

BF16, F32 = torch.bfloat16, torch.float32
Call = Callable[[], Any]
DEVICE = "cuda"
"""Where all tensors are."""
MOST_ON_CPU = 1 << 23
"""Elements of the largest tensors on a CPU, which are several times its cache."""
COMPILED = "torch.compile"
compiled_share: tuple[int, int] | None = None
"""Which peers torch.compile makes too, taking seconds each: (0, 1) all, (1, 3) the second of 3."""
_number = itertools.count()


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


def draw(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def fitted(*shape: int) -> tuple[int, ...]:
    """A shape, on a CPU with as much of its first axis as does not take too long."""
    first, *rest = shape
    if DEVICE == "cpu":
        first = min(first, max(1, MOST_ON_CPU // math.prod(rest)))
    return (first, *rest)


def with_compiled(peers: dict[str, Call], call: Call, *more: Call) -> dict[str, Call]:
    """Peers, and what torch compiles for the shapes of a call if that was asked for.

    More calls, each of what the one before gives, are operators of their own: compiled alone.
    """
    number = next(_number)
    if compiled_share is None or number % compiled_share[1] != compiled_share[0]:
        return peers
    torch._dynamo.reset()  # rows of one function would count as shapes that change
    first, *others = [torch.compile(each, dynamic=False) for each in (call, *more)]

    def all_of_them() -> Any:
        result = first()
        for other in others:
            result = other(result)
        return result

    return {**peers, **working({COMPILED: all_of_them})}


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
