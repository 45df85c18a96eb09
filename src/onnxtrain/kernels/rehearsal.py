"""Rehearsals: a thread goes through a step on tensors without memory, to learn what it launches.

Nothing is launched meanwhile, only asked for, and nothing that kernels make may outlast it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Request = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
"""Takes a Triton function, the arguments of a launch, and its options."""
T = TypeVar("T")


class _Thread(threading.local):
    request: Request | None = None


_thread = _Thread()


def rehearsing() -> bool:
    """Whether this thread rehearses."""
    return _thread.request is not None


def request(function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Ask for a kernel that would be launched."""
    if _thread.request is not None:
        _thread.request(function, arguments, options)


@contextlib.contextmanager
def asking(request: Request) -> Iterator[None]:
    """With: this thread rehearses, and whatever it would launch is asked for."""
    before, _thread.request = _thread.request, request
    try:
        yield
    finally:
        _thread.request = before


def remembered(most: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """What a function gives for arguments is kept, of so many at most, but not in a rehearsal."""

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        kept = functools.lru_cache(most)(function)

        @functools.wraps(function)
        def call(*arguments: Any) -> T:
            return function(*arguments) if rehearsing() else kept(*arguments)

        return call

    return decorate
