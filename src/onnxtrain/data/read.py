"""Arrays from wherever they are: files, folders of files, folders of images, Python functions."""

from __future__ import annotations

import dataclasses
import difflib
import os
import pathlib
from collections.abc import Collection, Sequence
from typing import Any

from onnxtrain.data import calls, images, json_lines, numpy_files, parquet, tables
from onnxtrain.data.arrays import Array, Arrays, Slot, wanted
from onnxtrain.data.lazy import joined
from onnxtrain.errors import FeedError

SUFFIXES = (".npz", ".csv", ".parquet", ".jsonl", ".npy", ".tsv")


def read(
    source: str | os.PathLike[str],
    slots: Sequence[Slot] = (),
    pictures: images.Pictures | None = None,
    ignored: Collection[str] = (),
    option: str = "--data",
) -> Arrays:
    """The data of a source; what is large stays on the disk until it is asked for.

    Args:
        source: A file, a folder of files (read in the order of their names; ``.npy`` files are the
            arrays of one data set), a folder of images with one folder a class, or a function as
            ``module:function``.
        slots: What the data is for; images and functions are read to fit it.
        pictures: How images become arrays.
        ignored: Names of arrays and columns that are left out.
        option: What names the source on a command line, for messages.

    Raises:
        FeedError: if the source is missing, damaged or of another kind, or if the files of a
            folder do not fit together.
    """
    place, pictures = pathlib.Path(source), pictures or images.Pictures()
    if place.is_dir() and images.classes_of(place):
        return _without(images.read(place, slots, pictures), ignored)
    data = _read_arrays(place, os.fspath(source), slots, ignored, option)
    if pictures != images.Pictures():
        raise FeedError(
            "--image-size, --image-stretch, --image-mean and --image-std are for files of images, "
            f"of which '{source}' has none\n"
            "  leave them out: arrays are fed as they are, so scale them before"
        )
    return data


def _read_arrays(
    place: pathlib.Path,
    source: str,
    slots: Sequence[Slot],
    ignored: Collection[str],
    option: str,
) -> Arrays:
    """The same for what is no folder of images."""
    if place.is_dir():
        return _read_folder(place, ignored)
    if place.exists():
        return _read_file(place, ignored)
    if calls.is_call(source):
        return _without(calls.read(source, slots), ignored)
    raise FeedError(f"cannot read data: there is no file '{place}'{_nearby(place, option)}")


def _without(data: Arrays, ignored: Collection[str]) -> Arrays:
    keep = wanted(data.values, ignored, data.source)
    return dataclasses.replace(data, values={name: data.values[name] for name in keep})


def _read_file(place: pathlib.Path, ignored: Collection[str]) -> Arrays:
    reader = _READERS.get(place.suffix.lower())
    if reader is None:
        cure = _CURES.get(place.suffix.lower())
        raise FeedError(
            f"cannot read data from '{place}': its kind is not known\n"
            f"  give a {' or '.join(SUFFIXES)} file, a folder of them, a folder of images with "
            "one folder a class, or module:function"
            + ("" if cure is None else f"\n  {cure.format(place)}")
        )
    try:
        if place.suffix.lower() in _TABLES:
            return reader(place, ignored)  # type: ignore[no-any-return]
        return _without(reader(place), ignored)
    except OSError as error:
        raise FeedError(f"cannot read data from '{place}': {error.strerror or error}") from error


def _nearby(place: pathlib.Path, option: str) -> str:
    """What could have been meant instead of a file that is not there."""
    folder = place.parent
    if not folder.is_dir():
        return f"\n  there is no folder '{folder}' either"
    found = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in SUFFIXES)
    close = difflib.get_close_matches(place.name, found, n=1)
    if close:
        return f"\n  did you mean  {option} {folder / close[0]}"
    more = ", ..." if len(found) > 8 else ""
    return f"\n  '{folder}' has  {', '.join(found[:8])}{more}" if found else ""


_READERS: dict[str, Any] = {
    ".npz": numpy_files.read_npz,
    ".npy": numpy_files.read_npy,
    ".csv": tables.read_csv,
    ".tsv": tables.read_csv,
    ".parquet": parquet.read_parquet,
    ".jsonl": json_lines.read_json_lines,
    ".ndjson": json_lines.read_json_lines,
}
_TABLES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson")
"""Kinds of files in which a column that is ignored may be of any kind."""
_CURES = {
    ".gz": "gunzip {}",
    ".zip": "unzip {}",
    ".json": "write it as .csv, with a line that names the columns, or as .jsonl, an object a line",
    ".xlsx": "save it as .csv, with a line that names the columns",
    ".txt": "rename it to .csv if its first line names columns",
    ".pt": "write its tensors with numpy.savez, or load them in a module:function",
}


def _read_folder(folder: pathlib.Path, ignored: Collection[str]) -> Arrays:
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in _READERS)
    if not files:
        raise FeedError(
            f"cannot read data: '{folder}' has no {' or '.join(SUFFIXES)} file\n"
            "  images go into one folder a class, say "
            f"'{folder / 'cat' / '1.png'}' and '{folder / 'dog' / '1.png'}'"
        )
    if all(file.suffix.lower() == ".npy" for file in files):
        single = {file.stem: _read_file(file, ()).values[file.stem] for file in files}
        return _without(Arrays(single, tabular=False, source=str(folder)), ignored)
    parts = [_read_file(file, ignored) for file in files]
    first = parts[0]
    for part in parts[1:]:
        if part.values.keys() != first.values.keys():
            raise FeedError(
                f"the files of '{folder}' do not have the same arrays\n"
                f"  {first.source}  {', '.join(sorted(first.values))}\n"
                f"  {part.source}  {', '.join(sorted(part.values))}"
            )
    try:
        values = {name: joined([p.values[name] for p in parts]) for name in first.values}
    except ValueError as error:
        raise FeedError(f"the files of '{folder}' do not fit together: {error}") from error
    return Arrays(values, tabular=all(p.tabular for p in parts), source=str(folder))


__all__ = ["Array", "Arrays", "read"]
