"""``.npy`` and ``.npz`` files: arrays that are large and not compressed stay on the disk."""

from __future__ import annotations

import contextlib
import pathlib
import struct
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from onnxtrain.data import lazy
from onnxtrain.data.arrays import Arrays
from onnxtrain.data.lazy import PART, Array, Rows, Samples, Spill, kept
from onnxtrain.errors import FeedError

_LOCAL_HEADER = struct.Struct("<26xHH")
"""Header of a member of a zip file; its end are the lengths of name and extra field."""


def read_npy(path: pathlib.Path) -> Arrays:
    """The array of a file, under the name of the file."""
    with _explained(path, "npy", "numpy.save"), path.open("rb") as file:
        array = _mapped(path, file, 0)
    return Arrays({path.stem: kept(array)}, tabular=False, source=str(path))


def read_npz(path: pathlib.Path) -> Arrays:
    """The arrays of a file by name."""
    with _explained(path, "npz", "numpy.savez"), zipfile.ZipFile(path) as file:
        members = {m.filename.removesuffix(".npy"): m for m in file.infolist()}
        values = {name: _member(path, file, member) for name, member in members.items()}
    return Arrays(values, tabular=False, source=str(path))


@contextlib.contextmanager
def _explained(path: pathlib.Path, kind: str, writer: str) -> Iterator[None]:
    """With: errors of a file that is damaged or of another kind say so."""
    try:
        yield
    except (zipfile.BadZipFile, struct.error, ValueError, EOFError) as error:
        if isinstance(error, FeedError):
            raise
        reason = "it holds Python objects" if "object" in str(error).lower() else "it is damaged"
        raise FeedError(
            f"cannot read data from '{path}': {reason} or not an {kind} file\n"
            f"  write it with {writer}, from arrays of numbers"
        ) from error


def _member(path: pathlib.Path, file: zipfile.ZipFile, member: zipfile.ZipInfo) -> Samples:
    with file.open(member) as stream:
        if member.file_size <= lazy.LARGE:
            return np.lib.format.read_array(stream, allow_pickle=False)
        if member.compress_type != zipfile.ZIP_STORED:
            return _unpacked(stream)
    with path.open("rb") as plain:
        plain.seek(member.header_offset)
        lengths = _LOCAL_HEADER.unpack(plain.read(_LOCAL_HEADER.size))
        plain.seek(sum(lengths), 1)
        return kept(_mapped(path, plain, plain.tell()))


def _header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and type; the position is then at the values."""
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0}
    reader = readers.get(version, np.lib.format.read_array_header_2_0)
    shape, columns_first, dtype = reader(stream)
    if dtype.hasobject:
        raise ValueError("an array of objects")
    return shape, columns_first, dtype


def _mapped(path: pathlib.Path, file: Any, start: int) -> Array:
    """An array that begins somewhere in a file, without reading its values."""
    file.seek(start)
    shape, columns_first, dtype = _header(file)
    if not shape or 0 in shape:
        file.seek(start)
        return np.lib.format.read_array(file, allow_pickle=False)
    order: Any = "F" if columns_first else "C"
    return np.memmap(path, dtype, "r", offset=file.tell(), shape=shape, order=order)


def _unpacked(stream: Any) -> Samples:
    """A compressed array, part by part, in a file of its own."""
    shape, columns_first, dtype = _header(stream)
    if columns_first or not shape:
        raise ValueError("an array whose samples do not follow one another")
    size = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
    spill, count = Spill(), max(1, PART // max(1, size))
    for first in range(0, shape[0], count):
        wanted = min(count, shape[0] - first)
        raw = stream.read(wanted * size)
        spill.add(np.frombuffer(raw, dtype).reshape(wanted, *shape[1:]))
    return Rows(spill.array(dtype, shape[1:]))
