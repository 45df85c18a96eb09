"""A peer that says nothing for as long as another waits for it."""

import contextlib
import pathlib
import time
from collections.abc import Iterator


@contextlib.contextmanager
def ended(path: pathlib.Path) -> Iterator[None]:
    """With: there is a file as soon as this is over."""
    try:
        yield
    finally:
        path.touch()


def silent_until(path: pathlib.Path, seconds: float = 4.0) -> None:
    """Do nothing until there is a file, or for some seconds."""
    end = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
