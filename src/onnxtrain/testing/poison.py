"""Memory that was never written must never be read: fill it with something that shows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

PATTERN = 0x5A
"""What every byte of uninitialised whole numbers holds."""
_MAKERS = ("empty", "empty_like", "empty_strided", "empty_permuted")
_METHODS = ("new_empty", "new_empty_strided")


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Overwrite a tensor: floating point numbers with NaN, all else with a large pattern."""
    if tensor.is_meta or not tensor.numel():
        return tensor
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return tensor.fill_(float("nan"))
    if tensor.dtype is torch.bool:
        return tensor.fill_(True)
    width = tensor.element_size()
    return tensor.fill_(int.from_bytes(bytes([PATTERN] * width), "little"))


@contextmanager
def poisoned() -> Iterator[None]:
    """With: everything that asks torch for uninitialised memory gets it poisoned."""
    before: list[tuple[Any, str, Any]] = []
    for owner, names in ((torch, _MAKERS), (torch.Tensor, _METHODS)):
        for name in names:
            before.append((owner, name, getattr(owner, name)))
            setattr(owner, name, _poisoning(getattr(owner, name)))
    try:
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def _poisoning(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(function)
    def make(*args: Any, **options: Any) -> torch.Tensor:
        return poison(function(*args, **options))

    return make
