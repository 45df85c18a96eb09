"""One seed for everything random in a process that has no seed of its own."""

from __future__ import annotations

import operator
from typing import Any

import torch

from onnxtrain.errors import OptionError

SEEDS = 2**64
"""How many seeds a generator of torch tells apart."""


class _Process:
    """Where the seeds of this process come from; None if each is drawn anew."""

    seeds: torch.Generator | None = None


def seed_of(given: Any) -> int:
    """A seed as generators of torch and NumPy take it; a negative one counts from the end.

    Raises:
        OptionError: if it is no whole number, or too large.
    """
    try:
        seed = operator.index(given)
    except TypeError:
        seed = SEEDS
    if isinstance(given, bool) or not -SEEDS // 2 <= seed < SEEDS:
        raise OptionError(
            f"a seed is a whole number from 0 to 2**64 - 1, not {given!r}\n  give  0, say"
        )
    return seed % SEEDS


def set_seed(seed: int) -> None:
    """Let all random numbers of what is made from now on follow from one seed.

    That is sessions, modules and trainers that are given no seed. Each gets another one, so that
    two of them differ; the same ones made in the same order get the same.

    Raises:
        OptionError: if it is no whole number, or too large.
    """
    _Process.seeds = torch.Generator().manual_seed(seed_of(seed))


def next_seed() -> int:
    """A seed for one step: what follows from ``set_seed``, or any if that was not called."""
    if _Process.seeds is None:
        return torch.Generator().seed()
    return int(torch.randint(2**62, (), generator=_Process.seeds))
