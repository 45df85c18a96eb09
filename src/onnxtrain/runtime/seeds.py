"""One seed for everything random in a process that has no seed of its own."""

from __future__ import annotations

import torch


class _Process:
    """Where the seeds of this process come from; None if each is drawn anew."""

    seeds: torch.Generator | None = None


def set_seed(seed: int) -> None:
    """Let all random numbers of what is made from now on follow from one seed.

    That is sessions, modules and trainers that are given no seed. Each gets another one, so that
    two of them differ; the same ones made in the same order get the same.
    """
    _Process.seeds = torch.Generator().manual_seed(seed)


def next_seed() -> int:
    """A seed for one step: what follows from ``set_seed``, or any if that was not called."""
    if _Process.seeds is None:
        return torch.Generator().seed()
    return int(torch.randint(2**62, (), generator=_Process.seeds))
