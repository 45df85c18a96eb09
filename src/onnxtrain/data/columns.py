"""Columns of a table that is too large for memory: they come part by part and go to the disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxtrain.data.lazy import Array, Rows, Samples, Spill, joined


class MixedColumnError(ValueError):
    """A column has numbers in one part and words, or lists of another length, in another.

    Attributes:
        name: Name of the column.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclasses.dataclass(frozen=True)
class _Run:
    """Parts of one structure: a record a row, words as numbers of a vocabulary."""

    dtype: np.dtype[Any]
    spill: Spill = dataclasses.field(default_factory=Spill)

    def records(self) -> Array:
        """The rows so far; each call opens the file anew."""
        return self.spill.array(self.dtype, ())


class Columns:
    """Takes the columns of part after part; gives them as arrays that stay on the disk.

    All columns of a row stand together in one file, so that a row is read at once. Numbers that
    become wider in a later part (whole ones, then some that are missing) begin another file.
    """

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._words: dict[str, dict[str, int]] = {}

    def add(self, part: Mapping[str, Array]) -> None:
        """Append the rows of a part, which has the same columns as those before it.

        Raises:
            MixedColumnError: if a column is of another kind than before.
        """
        numbers = {name: self._numbers(name, array) for name, array in part.items()}
        fields = [(name, *self._field(name, array)) for name, array in numbers.items()]
        dtype = np.dtype(fields)
        if not self._runs or self._runs[-1].dtype != dtype:
            self._runs.append(_Run(dtype))
        records = np.empty(len(next(iter(part.values()))), dtype)
        for name, array in numbers.items():
            records[name] = array
        self._runs[-1].spill.add(records)

    def _numbers(self, name: str, array: Array) -> Array:
        """A column of a part; words as their places in the vocabulary."""
        known = self._words.get(name)
        if array.dtype.kind != "U":
            if known is None:
                return array
            if not _is_empty(array):
                raise MixedColumnError(name)
            array = np.full(len(array), "")
        elif known is None:
            known = self._words[name] = {}
            self._check_nothing_but_gaps(name)
        words, places = np.unique(array, return_inverse=True)
        codes = [known.setdefault(word, len(known)) for word in words.tolist()]
        return np.array(codes, np.int32)[places].reshape(array.shape)

    def _check_nothing_but_gaps(self, name: str) -> None:
        """Words that begin late: what came before them must have no value."""
        if not all(_is_empty(run.records()[name]) for run in self._runs):
            raise MixedColumnError(name)

    def _field(self, name: str, array: Array) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Type and shape of a column in a record, as wide as before or wider."""
        if not self._runs or name in self._words:
            return array.dtype, array.shape[1:]
        before = self._runs[-1].dtype[name]
        if before.shape != array.shape[1:]:
            raise MixedColumnError(name)
        return np.result_type(before.base, array.dtype), before.shape

    def arrays(self) -> dict[str, Samples]:
        """All columns."""
        runs = [run.records() for run in self._runs]
        return {name: self._array(name, runs) for name in runs[0].dtype.names or ()}

    def _array(self, name: str, runs: list[Array]) -> Samples:
        if name not in self._words:
            return joined([Rows(records[name]) for records in runs])
        words = np.array(list(self._words[name]))
        return joined([_worded(records[name], words) for records in runs])


def _worded(codes: Array, words: Array) -> Rows:
    """Codes that are read as the words they stand for; before the first word there is NaN."""
    dtype = words.dtype
    if codes.dtype.kind == "f":
        return Rows(codes, codes.shape, dtype, lambda part: np.full(len(part), "", dtype))
    return Rows(codes, codes.shape, dtype, lambda part: words[part])


def _is_empty(array: Array) -> bool:
    """Whether there is no value in a column of numbers."""
    return array.dtype.kind == "f" and bool(np.isnan(array).all())
