"""``.parquet`` files: large ones are copied, one group of rows at a time, to arrays on the disk."""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Mapping
from typing import Any

from onnxtrain.data import lazy
from onnxtrain.data.arrays import Arrays
from onnxtrain.data.columns import Columns, MixedColumnError
from onnxtrain.data.lazy import Samples
from onnxtrain.data.values import checked, neither
from onnxtrain.errors import FeedError


def read_parquet(path: pathlib.Path, ignored: Collection[str] = ()) -> Arrays:
    """The columns of a file; lists of equal length become wider arrays."""
    if not path.exists():
        raise FileNotFoundError
    try:
        import pyarrow.parquet
    except ImportError:
        values: Mapping[str, Samples] = checked(path, _by_pandas(path), ignored)
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
    """Columns in memory, or on the disk if the file is large."""
    meta = file.metadata
    size = sum(meta.row_group(i).total_byte_size for i in range(meta.num_row_groups))
    if size <= lazy.LARGE or meta.num_row_groups < 2:
        return dict(checked(path, _listed(file.read()), ignored))
    columns = Columns()
    try:
        for index in range(meta.num_row_groups):
            columns.add(checked(path, _listed(file.read_row_group(index)), ignored))
    except MixedColumnError as error:
        raise neither(path, error.name) from None
    return columns.arrays()


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
