"""Tables: ``.csv`` and ``.parquet`` files, a column an array of numbers or of words."""

from __future__ import annotations

import csv
import pathlib
from typing import Any

import numpy as np

from onnxtrain.data.arrays import Array, Arrays
from onnxtrain.errors import FeedError


def read_csv(path: pathlib.Path) -> Arrays:
    """The columns of a file whose first line names them."""
    names = _header(path)
    try:
        rows = np.loadtxt(
            path, delimiter=",", skiprows=1, ndmin=2, quotechar='"', encoding="utf-8-sig"
        )
    except ValueError:
        return Arrays(_with_words(path, names), tabular=True, source=str(path))
    if rows.size == 0 or rows.shape[1] != len(names):
        found = "no rows" if rows.size == 0 else f"rows of {rows.shape[1]}"
        raise FeedError(f"cannot read data from '{path}': {len(names)} columns, but {found}")
    columns = {name: rows[:, i] for i, name in enumerate(names)}
    return Arrays(columns, tabular=True, source=str(path))


def _header(path: pathlib.Path) -> list[str]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        names = [name.strip() for name in next(csv.reader(file), [])]
    if not names or any(_is_number(name) for name in names):
        raise FeedError(
            f"cannot read data from '{path}': its first line must name the columns\n"
            f"  it begins with  {','.join(names[:8]) or 'nothing'}\n"
            f"  put a line such as  {','.join([*(f'x_{i}' for i in range(3)), 'label'])}  before it"
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise FeedError(f"cannot read data from '{path}': two columns are called {twice[0]!r}")
    return names


def _with_words(path: pathlib.Path, names: list[str]) -> dict[str, Array]:
    """Columns of a file with words in it: text if no field of a column is a number."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.reader(file) if row][1:]
    for line, row in enumerate(rows, start=2):
        if len(row) != len(names):
            raise FeedError(
                f"cannot read data from '{path}': line {line} has {len(row)} fields, "
                f"the first line names {len(names)}"
            )
    columns = zip(*rows, strict=True)
    return {name: _column(path, name, c) for name, c in zip(names, columns, strict=True)}


def _column(path: pathlib.Path, name: str, fields: tuple[str, ...]) -> Array:
    numeric = [_is_number(field) for field in fields]
    if all(numeric):
        return np.array(fields, dtype=np.float64)
    if not any(numeric) and all(field.strip() for field in fields):
        return np.array([field.strip() for field in fields])
    line = numeric.index(False)
    raise FeedError(
        f"cannot read data from '{path}': column '{name}' has {fields[line]!r} in line {line + 2}"
        "\n  a column has a number in every line (or a word in every line, for classes)"
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_parquet(path: pathlib.Path) -> Arrays:
    """The columns of a file; lists of equal length become wider arrays."""
    if not path.exists():
        raise FileNotFoundError
    columns = _parquet_columns(path)
    values = {name: _parquet_column(path, name, column) for name, column in columns.items()}
    if not values or not len(next(iter(values.values()))):
        raise FeedError(f"cannot read data from '{path}': it has no rows")
    return Arrays(values, tabular=True, source=str(path))


def _parquet_columns(path: pathlib.Path) -> dict[str, Any]:
    """Columns as NumPy arrays or lists, by pyarrow or, where it is not there, pandas."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        return _by_pandas(path)
    try:
        table = parquet.read_table(path)
    except (ValueError, OSError) as error:
        raise FeedError(f"cannot read data from '{path}': it is damaged ({error})") from error
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _by_pandas(path: pathlib.Path) -> dict[str, Any]:
    try:
        import pandas
    except ImportError:
        raise FeedError(
            f"cannot read data from '{path}': neither pyarrow nor pandas is installed\n"
            "  pip install 'onnxtrain[data]'"
        ) from None
    try:
        frame = pandas.read_parquet(path)
    except ImportError:
        raise FeedError(
            f"cannot read data from '{path}': pandas needs pyarrow for it\n"
            "  pip install 'onnxtrain[data]'"
        ) from None
    except (ValueError, OSError) as error:
        raise FeedError(f"cannot read data from '{path}': it is damaged ({error})") from error
    return {str(name): frame[name].tolist() for name in frame.columns}


def _parquet_column(path: pathlib.Path, name: str, column: list[Any]) -> Array:
    missing = next((i for i, value in enumerate(column) if value is None), None)
    if missing is not None:
        raise FeedError(
            f"cannot read data from '{path}': column '{name}' has no value in row {missing + 1}\n"
            "  fill it, or leave out the row"
        )
    try:
        array = np.asarray(column)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biufU":
        raise FeedError(
            f"cannot read data from '{path}': column '{name}' is neither numbers, nor words, nor "
            "lists of numbers of one length"
        )
    return array
