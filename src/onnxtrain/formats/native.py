"""The package's own checkpoint: one safetensors file whose metadata holds a JSON manifest.

The format is written here, not by the safetensors package, because tensors are then streamed to
the disk and read into place, and because the NumPy side of the package has no bfloat16 or float8.
Layout: the length of the header (8 bytes, little endian), the header (JSON), the tensors.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
from collections.abc import Mapping
from typing import Any, BinaryIO, Literal, TypeAlias

import ml_dtypes
import numpy as np

from onnxtrain.errors import CheckpointError
from onnxtrain.files.atomic import atomic_write, finish_pending, loading
from onnxtrain.formats.arrays import (
    Array,
    check_shape,
    from_raw,
    raw_bytes,
    read_raw,
    storable,
)
from onnxtrain.formats.odtc.schema import IDENTIFIER

FORMAT = "onnxtrain-checkpoint"
VERSION = 1

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_METADATA = "__metadata__"
_LENGTH_SIZE = 8
_LONGEST_HEADER = 100_000_000  # the limit of the safetensors package


def write_native(
    path: str | os.PathLike[str], tensors: Mapping[str, Array], manifest: Mapping[str, Json]
) -> None:
    """Write a checkpoint; a crash at any moment leaves the old one or the new one.

    Args:
        path: the file to write or replace.
        tensors: values by key: ``param/<name>``, ``optim/<param>/<state>``, ``rng/<device>``, ...
        manifest: everything else, as JSON: step, learning rate, fingerprint of the model, ...

    Raises:
        CheckpointError: if the format cannot hold the data; nothing was written.
        SaveError: if the system refuses; the old checkpoint is untouched.
    """
    try:
        arrays = {name: _storable(name, array) for name, array in tensors.items()}
        # The largest element types come first, so that every tensor is aligned without gaps.
        order = sorted(arrays, key=lambda name: -arrays[name].itemsize)
        header = _header({name: arrays[name] for name in order}, manifest)
    except (CheckpointError, TypeError, ValueError) as error:
        raise CheckpointError(f"cannot save checkpoint '{os.fspath(path)}': {error}") from error

    def write(handle: BinaryIO) -> None:
        handle.write(header)
        for name in order:
            handle.write(raw_bytes(arrays[name]))

    atomic_write(path, write)


def _storable(name: str, array: Array) -> Array:
    if name == _METADATA:
        raise CheckpointError(f"no tensor may be called '{name}'")
    return storable(name, array, _NAMES)


def _header(arrays: Mapping[str, Array], manifest: Mapping[str, Json]) -> bytes:
    """Length and header, padded so that the tensors start at a multiple of 8 bytes."""
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "manifest": json.dumps(dict(manifest)),
    }
    entries: dict[str, object] = {_METADATA: metadata}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        entries[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_SIZE)
    if len(text) > _LONGEST_HEADER:
        raise CheckpointError(f"its header has {len(text)} bytes, {_LONGEST_HEADER} are allowed")
    return len(text).to_bytes(_LENGTH_SIZE, "little") + text


def read_native(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, Json]]:
    """Tensors and manifest of a checkpoint; the arrays are private copies.

    Raises:
        CheckpointError: if the file is missing, damaged or of another format or version.
    """
    with loading(path), _open(path) as handle:
        entries = _read_header(handle)
        manifest = _manifest(entries.pop(_METADATA, None))
        return _read_tensors(handle, entries), manifest


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Json]:
    """The manifest of a checkpoint, without its tensors.

    Raises:
        CheckpointError: if the file is missing, damaged or of another format or version.
    """
    with loading(path), _open(path) as handle:
        return _manifest(_read_header(handle).get(_METADATA))


def looks_like(path: str | os.PathLike[str]) -> Literal["odtc", "native"] | None:
    """Which kind of checkpoint a file seems to be, judged by how it starts; None if neither.

    Raises:
        CheckpointError: if the file is missing or cannot be opened.
    """
    with loading(path), _open(path) as handle:
        start = handle.read(_LENGTH_SIZE)
        if start[4:8] == IDENTIFIER:
            return "odtc"
        handle.seek(0)
        with contextlib.suppress(CheckpointError):
            _manifest(_read_header(handle).get(_METADATA))
            return "native"
    return None


def _open(path: str | os.PathLike[str]) -> io.BufferedReader:
    finish_pending(path)
    return open(path, "rb")


def _read_header(handle: io.BufferedReader) -> dict[str, Any]:
    """The header of a safetensors file; the position is then at the tensors."""
    size = os.fstat(handle.fileno()).st_size
    length = int.from_bytes(handle.read(_LENGTH_SIZE), "little")
    if length > min(size - _LENGTH_SIZE, _LONGEST_HEADER):
        raise CheckpointError("it is damaged or not a safetensors file: its header is cut off")
    try:
        entries = json.loads(handle.read(length))
    except (ValueError, RecursionError) as error:
        raise CheckpointError("it is damaged or not a safetensors file") from error
    if not isinstance(entries, dict):
        raise CheckpointError("it is damaged: its header is not a table")
    return entries


def _manifest(metadata: object) -> dict[str, Json]:
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"it is a safetensors file, but not a checkpoint of format '{FORMAT}'"
        )
    if metadata.get("version") != str(VERSION):
        raise CheckpointError(
            f"its format has version {metadata.get('version')}, only {VERSION} can be read"
        )
    try:
        manifest = json.loads(metadata["manifest"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError("it is damaged: its manifest cannot be read") from error
    if not isinstance(manifest, dict):
        raise CheckpointError("it is damaged: its manifest is not a table")
    return manifest


def _read_tensors(handle: io.BufferedReader, entries: dict[str, Any]) -> dict[str, Array]:
    """Read the tensors, which must fill the rest of the file without gaps or overlaps."""
    first = handle.tell()
    end = os.fstat(handle.fileno()).st_size - first
    spans = {name: _span(name, entry) for name, entry in entries.items()}
    expected = 0
    for start, stop, name in sorted((*span, name) for name, span in spans.items()):
        if start != expected:
            raise CheckpointError(f"it is damaged: tensor '{name}' is not where it must be")
        expected = stop
    if expected != end:
        raise CheckpointError(f"it is damaged: its tensors have {end} bytes instead of {expected}")
    tensors = {}
    for name, (start, stop) in spans.items():
        raw = read_raw(name, handle, first + start, stop - start)
        tensors[name] = from_raw(name, raw, _DTYPES[entries[name]["dtype"]], entries[name]["shape"])
    return tensors


def _span(name: str, entry: Any) -> tuple[int, int]:
    """First and last byte of a tensor, counted from the first tensor."""
    try:
        shape, (start, stop) = entry["shape"], entry["data_offsets"]
        item_size = _DTYPES[entry["dtype"]].itemsize
        check_shape(name, [*shape, start, stop])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"it is damaged: tensor '{name}' is described wrongly") from error
    if stop - start != math.prod(shape) * item_size:
        raise CheckpointError(f"it is damaged: tensor '{name}' does not have the size of its shape")
    return start, stop
