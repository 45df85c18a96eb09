"""Columns of Python values, as files with types give them."""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from onnxtrain.data.arrays import Array, wanted
from onnxtrain.errors import FeedError


def checked(
    path: pathlib.Path, columns: Mapping[str, list[Any]], ignored: Collection[str]
) -> dict[str, Array]:
    """The columns that are not to be ignored, as arrays.

    Raises:
        FeedError: if one is no array.
    """
    keep = wanted(columns, ignored, str(path))
    return {name: _column(path, name, columns[name]) for name in keep}


def _column(path: pathlib.Path, name: str, column: list[Any]) -> Array:
    """Numbers, with NaN for missing ones; words, with empty text for them; or lists."""
    gaps = [index for index, value in enumerate(column) if value is None]
    if gaps:
        present = [value for value in column if value is not None]
        if any(isinstance(value, list) for value in present):
            raise FeedError(
                f"cannot read data from '{path}': column '{name}' has no list in row "
                f"{gaps[0] + 1}\n  fill it, or leave out the row"
            )
        filler = "" if any(isinstance(value, str) for value in present) else np.nan
        column = [filler if value is None else value for value in column]
    try:
        array = np.asarray(column)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.dtype.kind == "O":
        array = _wide(column, array)
    if array.dtype.kind not in "biufU":
        raise _ragged(path, name, column) or neither(path, name)
    return array


def _wide(column: list[Any], array: Array) -> Array:
    """Whole numbers that are too long for 64 bits, with fewer digits; the array if it has none."""
    try:
        return np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return array


def _ragged(path: pathlib.Path, name: str, column: list[Any]) -> FeedError | None:
    """What is wrong with lists of different lengths; None if there are no such lists."""
    lengths = {len(value) for value in column if isinstance(value, (list, tuple))}
    if len(lengths) < 2:
        return None
    return FeedError(
        f"cannot read data from '{path}': column '{name}' has lists of {min(lengths)} to "
        f"{max(lengths)} values, not lists of numbers of one length\n"
        "  give all of them one length: cut them, or fill them up with 0, say"
    )


def neither(path: pathlib.Path, name: str) -> FeedError:
    """What is wrong with a column that is no array."""
    return FeedError(
        f"cannot read data from '{path}': column '{name}' is neither numbers, nor words, nor "
        f"lists of numbers of one length\n  leave it out with --ignore {name}"
    )
