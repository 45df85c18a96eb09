"""``.parquet`` files: large ones are copied, one group of rows at a time, to arrays on the disk."""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from onnxtrain.data import lazy
from onnxtrain.data.arrays import Array, Arrays, wanted
from onnxtrain.data.lazy import Rows, Samples, Spill
from onnxtrain.errors import FeedError


def read_parquet(path: pathlib.Path, ignored: Collection[str] = ()) -> Arrays:
    """The columns of a file; lists of equal length become wider arrays."""
    if not path.exists():
        raise FileNotFoundError
    try:
        import pyarrow.parquet
    except ImportError:
        values: Mapping[str, Samples] = _checked(path, _by_pandas(path), ignored)
    else:
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                values = _by_groups(path, file, ignored)
        except (ValueError, OSError) as error:
            if isinstance(error, FeedError):
                raise
            raise FeedError(f"cannot read data from '{path}': it is damaged ({error})") from error
    if not values or not len(next(iter(values.values()))):
        raise FeedError(
            f"cannot read data from '{path}': it has no rows\n  write at least one row into it"
        )
    return Arrays(dict(values), tabular=True, source=str(path))


def _by_groups(path: pathlib.Path, file: Any, ignored: Collection[str]) -> dict[str, Samples]:
    """Columns in memory, or those of numbers on the disk if the file is large."""
    meta = file.metadata
    size = sum(meta.row_group(i).total_byte_size for i in range(meta.num_row_groups))
    if size <= lazy.LARGE or meta.num_row_groups < 2:
        return dict(_checked(path, _listed(file.read()), ignored))
    spills: dict[str, Spill] = {}
    words: dict[str, list[Array]] = {}
    like: dict[str, Array] = {}
    for index in range(meta.num_row_groups):
        columns = _listed(file.read_row_group(index))
        for name, part in _checked(path, columns, ignored).items():
            first = like.setdefault(name, part[:0])
            if part.dtype.kind == "U":
                words.setdefault(name, []).append(part)
                continue
            if part.shape[1:] != first.shape[1:]:
                raise _neither(path, name)
            spills.setdefault(name, Spill()).add(part.astype(first.dtype))
    return {
        name: np.concatenate(words[name])
        if name in words
        else Rows(spills[name].array(first.dtype, first.shape[1:]))
        for name, first in like.items()
    }


def _listed(table: Any) -> dict[str, list[Any]]:
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _by_pandas(path: pathlib.Path) -> dict[str, list[Any]]:
    """Columns where pyarrow is not there."""
    try:
        import pandas

        frame = pandas.read_parquet(path)
    except ImportError:
        raise FeedError(
            f"cannot read data from '{path}': pyarrow is not installed\n"
            "  pip install 'onnxtrain[data]'"
        ) from None
    except (ValueError, OSError) as error:
        raise FeedError(f"cannot read data from '{path}': it is damaged ({error})") from error
    return {str(name): frame[name].tolist() for name in frame.columns}


def _checked(
    path: pathlib.Path, columns: Mapping[str, list[Any]], ignored: Collection[str]
) -> dict[str, Array]:
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
    if array.dtype.kind not in "biufU":
        raise _neither(path, name)
    return array


def _neither(path: pathlib.Path, name: str) -> FeedError:
    return FeedError(
        f"cannot read data from '{path}': column '{name}' is neither numbers, nor words, nor "
        f"lists of numbers of one length\n  leave it out with --ignore {name}"
    )
