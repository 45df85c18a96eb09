"""What data is before a model takes it: named arrays; and what a model asks for: slots."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
LABELS = ("labels", "label", "target", "targets", "y", "class")
"""Names under which data files keep what a model should answer."""


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Named arrays whose first axis counts samples.

    Attributes:
        values: The arrays; text where the source has words.
        tabular: Whether they are the columns of a table, which may be joined to wider arrays.
        source: Where they come from, for messages.
    """

    values: dict[str, Array]
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
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None = None
    aliases: tuple[str, ...] = ()
