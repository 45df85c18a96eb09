"""Arrays from wherever they are: files, folders of files, folders of images, Python functions."""

from __future__ import annotations

import os
import pathlib
import zipfile
from collections.abc import Sequence

import numpy as np

from onnxtrain.data import calls, images, tables
from onnxtrain.data.arrays import Array, Arrays, Slot
from onnxtrain.errors import FeedError

SUFFIXES = (".npz", ".csv", ".parquet")


def read(
    source: str | os.PathLike[str],
    slots: Sequence[Slot] = (),
    pictures: images.Pictures | None = None,
) -> Arrays:
    """Read all data of a source.

    Args:
        source: A file, a folder of files (read in the order of their names), a folder of images
            with one folder a class, or a function as ``module:function``.
        slots: What the data is for; images and functions are read to fit it.
        pictures: How images become arrays.

    Raises:
        FeedError: if the source is missing, damaged or of another kind, or if the files of a
            folder do not fit together.
    """
    place = pathlib.Path(source)
    if not place.exists() and calls.is_call(os.fspath(source)):
        return calls.read(os.fspath(source), slots)
    if place.is_dir():
        if images.classes_of(place):
            return images.read(place, slots, pictures or images.Pictures())
        return _read_folder(place)
    return _read_file(place)


def _read_file(place: pathlib.Path) -> Arrays:
    reader = _READERS.get(place.suffix.lower())
    if reader is None and place.exists():
        raise FeedError(
            f"cannot read data from '{place}': its kind is not known\n"
            f"  give a {' or '.join(SUFFIXES)} file, a folder of them, a folder of images with "
            "one folder a class, or module:function"
        )
    try:
        if reader is None:
            raise FileNotFoundError
        return reader(place)
    except FileNotFoundError:
        raise FeedError(f"cannot read data: there is no file '{place}'{_nearby(place)}") from None
    except OSError as error:
        raise FeedError(f"cannot read data from '{place}': {error.strerror or error}") from error


def _nearby(place: pathlib.Path) -> str:
    """What could have been meant instead of a file that is not there."""
    folder = place.parent
    if not folder.is_dir():
        return f"\n  there is no folder '{folder}' either"
    found = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in SUFFIXES)
    return f"\n  '{folder}' has  {', '.join(found[:8])}" if found else ""


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


_READERS = {".npz": _read_npz, ".csv": tables.read_csv, ".parquet": tables.read_parquet}


def _read_folder(folder: pathlib.Path) -> Arrays:
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in _READERS)
    if not files:
        raise FeedError(
            f"cannot read data: '{folder}' has no {' or '.join(SUFFIXES)} file\n"
            "  images go into one folder a class, say "
            f"'{folder / 'cat' / '1.png'}' and '{folder / 'dog' / '1.png'}'"
        )
    parts = [_read_file(file) for file in files]
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


__all__ = ["Array", "Arrays", "read"]
