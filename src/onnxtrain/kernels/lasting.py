"""What kernels take from caches while a graph is recorded: the recording must keep it alive."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_open: list[list[object]] = []


@contextlib.contextmanager
def keeping() -> Iterator[list[object]]:
    """With: the list to which kernels add what they read and may be forgotten by a cache."""
    found: list[object] = []
    _open.append(found)
    try:
        yield found
    finally:
        _open.remove(found)


def keep(*values: object) -> None:
    """Let every recording that is being made hold on to these."""
    for found in _open:
        found.extend(values)
