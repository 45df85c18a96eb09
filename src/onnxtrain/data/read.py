"""Arrays from files: ``.npz``, ``.csv``, and folders of them."""

from __future__ import annotations

import csv
import dataclasses
import os
import pathlib
import zipfile
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxtrain.errors import FeedError

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Named arrays whose first axis counts samples.

    Attributes:
        values: The arrays.
        tabular: Whether they are the columns of a table, which may be joined to wider arrays.
        source: Where they come from, for messages.
    """

    values: dict[str, Array]
    tabular: bool
    source: str


def read(path: str | os.PathLike[str]) -> Arrays:
    """Read a file of arrays, or all such files of a folder in the order of their names.

    Raises:
        FeedError: if a file is missing, damaged or of another kind, or if the files of a folder
            do not fit together.
    """
    place = pathlib.Path(path)
    if place.is_dir():
        return _read_folder(place)
    reader = _READERS.get(place.suffix.lower())
    if reader is None:
        raise FeedError(
            f"cannot read data from '{place}': its kind is not known\n"
            f"  give a {' or '.join(_READERS)} file, or a folder of them"
        )
    try:
        return reader(place)
    except FileNotFoundError:
        raise FeedError(f"cannot read data: there is no file '{place}'") from None
    except OSError as error:
        raise FeedError(f"cannot read data from '{place}': {error.strerror or error}") from error


def _read_npz(path: pathlib.Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise FeedError(f"cannot read data from '{path}': it is not an npz file")
            values = {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        if isinstance(error, FeedError):
            raise
        reason = "it holds Python objects" if "pickle" in str(error) else "it is damaged"
        raise FeedError(
            f"cannot read data from '{path}': {reason} or not an npz file\n"
            "  write it with numpy.savez, from arrays of numbers"
        ) from error
    return Arrays(values, tabular=False, source=str(path))


def _read_csv(path: pathlib.Path) -> Arrays:
    with path.open(encoding="utf-8-sig", newline="") as file:
        names = [name.strip() for name in next(csv.reader(file), [])]
    if not names or any(_is_number(name) for name in names):
        raise FeedError(
            f"cannot read data from '{path}': its first line must name the columns\n"
            f"  it begins with  {','.join(names[:8]) or 'nothing'}"
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise FeedError(f"cannot read data from '{path}': two columns are called {twice[0]!r}")
    try:
        rows = np.loadtxt(
            path, delimiter=",", skiprows=1, ndmin=2, quotechar='"', encoding="utf-8-sig"
        )
    except ValueError as error:
        raise FeedError(
            f"cannot read data from '{path}': {error}\n"
            "  every field below the first line must be a number"
        ) from error
    if rows.size == 0 or rows.shape[1] != len(names):
        found = "no rows" if rows.size == 0 else f"rows of {rows.shape[1]}"
        raise FeedError(f"cannot read data from '{path}': {len(names)} columns, but {found}")
    columns = {name: rows[:, i] for i, name in enumerate(names)}
    return Arrays(columns, tabular=True, source=str(path))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_READERS = {".npz": _read_npz, ".csv": _read_csv}


def _read_folder(folder: pathlib.Path) -> Arrays:
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in _READERS)
    if not files:
        raise FeedError(f"cannot read data: '{folder}' has no {' or '.join(_READERS)} file")
    parts = [read(file) for file in files]
    first = parts[0]
    for part in parts[1:]:
        if part.values.keys() != first.values.keys():
            raise FeedError(
                f"the files of '{folder}' do not have the same arrays\n"
                f"  {first.source}  {', '.join(sorted(first.values))}\n"
                f"  {part.source}  {', '.join(sorted(part.values))}"
            )
    try:
        joined = {name: np.concatenate([p.values[name] for p in parts]) for name in first.values}
    except ValueError as error:
        raise FeedError(f"the files of '{folder}' do not fit together: {error}") from error
    return Arrays(joined, tabular=all(p.tabular for p in parts), source=str(folder))
