"""Checkpoints in the format of onnxruntime-training 1.19.2: FlatBuffers, ``ODTC``, version 2."""

from __future__ import annotations

import contextlib
import os

from onnxtrain.errors import CheckpointError
from onnxtrain.files.atomic import atomic_write, atomic_write_pair, loading, open_pair
from onnxtrain.formats.odtc.data import CheckpointData, OptimizerGroup
from onnxtrain.formats.odtc.reader import decode, has_external_data
from onnxtrain.formats.odtc.writer import EXTERNAL_THRESHOLD, encode

__all__ = [
    "EXTERNAL_THRESHOLD",
    "CheckpointData",
    "OptimizerGroup",
    "check_property",
    "read_checkpoint",
    "read_checkpoint_bytes",
    "write_checkpoint",
]


def check_property(name: str, value: int | float | str) -> None:
    """Refuse a property that no checkpoint can hold.

    Raises:
        CheckpointError: if its name or its value does not fit.
    """
    encode(CheckpointData(properties={name: value}), EXTERNAL_THRESHOLD)


def read_checkpoint(path: str | os.PathLike[str]) -> CheckpointData:
    """Read a checkpoint and, if it has one, its data file; the arrays are private copies.

    Raises:
        CheckpointError: if the file is missing, damaged or of another version.
    """
    with loading(path), open_pair(path) as (main, data):
        return decode(main.read(), data)


def read_checkpoint_bytes(buffer: bytes) -> CheckpointData:
    """Read a checkpoint from memory; one with a data file can only be read from its path.

    Raises:
        CheckpointError: if the bytes are damaged or of another version.
    """
    try:
        return decode(buffer, None)
    except CheckpointError as error:
        raise CheckpointError(f"cannot load checkpoint from memory: {error}") from error


def write_checkpoint(
    path: str | os.PathLike[str],
    data: CheckpointData,
    *,
    external_threshold: int = EXTERNAL_THRESHOLD,
) -> None:
    """Write a checkpoint; a crash at any moment leaves the old one or the new one.

    Args:
        path: the file to write or replace.
        data: what to write, in the order of its dictionaries.
        external_threshold: total bytes from which on the tensors go to ``path.data``.

    Raises:
        CheckpointError: if the format cannot hold ``data``; nothing was written.
        SaveError: if the system refuses; the old checkpoint is untouched.
    """
    try:
        main, external = encode(data, external_threshold)
    except CheckpointError as error:
        raise CheckpointError(f"cannot save checkpoint '{os.fspath(path)}': {error}") from error
    if external is not None or _has_data_file(path):
        atomic_write_pair(path, main, external)
    else:
        atomic_write(path, main)


def _has_data_file(path: str | os.PathLike[str]) -> bool:
    """Whether a data file belongs to the checkpoint that lies at ``path``."""
    with contextlib.suppress(CheckpointError, OSError), open_pair(path) as (main, data):
        return data is not None and has_external_data(main.read())
    return False
