"""Python's garbage collector, kept quiet while many objects that stay are made."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collecting_later() -> Iterator[None]:
    """With, or as a decorator: garbage is collected afterwards.

    A graph of many thousand nodes is looked through again and again while it grows, which takes
    a third of the time that building or planning it takes.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
