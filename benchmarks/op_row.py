"""One operator at one shape, and what all of its rows share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

BF16, F32 = torch.bfloat16, torch.float32
Call = Callable[[], Any]
compiled_peers = False
"""Whether peers made by torch.compile are measured too, which takes seconds each."""


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
    return torch.randn(shape, device="cuda").to(dtype)


def with_compiled(peers: dict[str, Call], call: Call) -> dict[str, Call]:
    """Peers, and the call compiled by torch if that was asked for."""
    return {**peers, "torch.compile": torch.compile(call)} if compiled_peers else peers
