"""What data is before a model takes it: named arrays; and what a model asks for: slots."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from onnxtrain.data.lazy import Array, Samples
from onnxtrain.errors import FeedError

LABELS = ("labels", "label", "target", "targets", "y", "class")
"""Names under which data files keep what a model should answer."""


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Named arrays whose first axis counts samples.

    Attributes:
        values: The arrays, in memory or on the disk; text where the source has words, NaN and
            empty text where it has no value.
        tabular: Whether they are the columns of a table, which may be joined to wider arrays.
        source: Where they come from, for messages.
    """

    values: Mapping[str, Samples]
    tabular: bool
    source: str


@dataclasses.dataclass(frozen=True)
class Slot:
    """An input that wants an array.

    Attributes:
        name: Name of the input.
        dtype: Its element type.
        shape: Its dimensions, the batch first; None where a dimension is free.
        aliases: Other names that an array for it may have.
        words: How many words it takes besides numbers, which become 0, 1, ...; 0 for none. A slot
            of whole numbers takes any number of words.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None = None
    aliases: tuple[str, ...] = ()
    words: int = 0


def flag(option: str, value: str) -> str:
    """An option with its value as one types it into a shell."""
    return f"{option} {shlex.quote(value)}"


def wanted(names: Iterable[str], ignored: Collection[str], source: str) -> list[str]:
    """The names of arrays that are not to be ignored.

    Raises:
        FeedError: if one that is to be ignored is not there.
    """
    names = list(names)
    if unknown := [name for name in ignored if name not in names]:
        raise FeedError(
            f"there is no '{unknown[0]}' to ignore in '{source}'\n  have  {', '.join(names)}"
        )
    return [name for name in names if name not in ignored]


__all__ = ["LABELS", "Array", "Arrays", "Samples", "Slot", "flag", "wanted"]
