"""Adapter files (``.onnx_adapter``): named tensors that onnxruntime feeds to a model's inputs."""

from __future__ import annotations

import enum
import os
import pathlib
from collections.abc import Mapping

import flatbuffers
import numpy as np

from onnxtrain.errors import CheckpointError
from onnxtrain.files.atomic import atomic_write, loading
from onnxtrain.formats.arrays import Array, check_shape, from_raw, storable
from onnxtrain.formats.odtc.data import ELEMENT_TYPES
from onnxtrain.formats.odtc.flatbuffer import Buffer, Table

IDENTIFIER = b"TORT"
FORMAT_VERSION = 1

_ALIGNMENT = 8
_CODES = {dtype: code for code, dtype in ELEMENT_TYPES.items()}


class _Root(enum.IntEnum):
    """Fields of the root table."""

    FORMAT_VERSION = 0
    ADAPTER_VERSION = 1
    MODEL_VERSION = 2
    PARAMETERS = 3


class _Parameter(enum.IntEnum):
    """Fields of one tensor."""

    NAME = 0
    DIMS = 1
    ELEMENT_TYPE = 2
    RAW_DATA = 3


def write_adapter(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Array],
    *,
    adapter_version: int = 1,
    model_version: int = 1,
) -> None:
    """Write tensors as an adapter file, atomically.

    Args:
        path: The file to write or replace.
        tensors: Values by the names of the inputs that they are for.
        adapter_version: Version of these values, for the reader's own use.
        model_version: Version of the model that they belong to, for the reader's own use.

    Raises:
        CheckpointError: if the format cannot hold a tensor.
        SaveError: if the file could not be written.
    """
    builder = flatbuffers.Builder(1024)
    tables = [_write_tensor(builder, name, array) for name, array in tensors.items()]
    builder.StartVector(4, len(tables), 4)
    for table in reversed(tables):
        builder.PrependUOffsetTRelative(table)
    parameters = builder.EndVector()
    builder.StartObject(len(_Root))
    builder.PrependInt32Slot(_Root.FORMAT_VERSION, FORMAT_VERSION, 0)
    builder.PrependInt32Slot(_Root.ADAPTER_VERSION, adapter_version, 0)
    builder.PrependInt32Slot(_Root.MODEL_VERSION, model_version, 0)
    builder.PrependUOffsetTRelativeSlot(_Root.PARAMETERS, parameters, 0)
    builder.Finish(builder.EndObject(), file_identifier=IDENTIFIER)
    atomic_write(path, bytes(builder.Output()))


def _write_tensor(builder: flatbuffers.Builder, name: str, array: Array) -> int:
    array = storable(name, array, _CODES)
    if not array.ndim:
        raise CheckpointError(f"tensor '{name}' has no dimension, an adapter file needs at least 1")
    text = builder.CreateString(name)
    dims = builder.CreateNumpyVector(np.array(array.shape, np.int64))
    content = array.tobytes()
    builder.Prep(_ALIGNMENT, len(content))
    raw = builder.CreateByteVector(content)
    builder.StartObject(len(_Parameter))
    builder.PrependUOffsetTRelativeSlot(_Parameter.NAME, text, 0)
    builder.PrependUOffsetTRelativeSlot(_Parameter.DIMS, dims, 0)
    builder.PrependInt32Slot(_Parameter.ELEMENT_TYPE, _CODES[array.dtype], 0)
    builder.PrependUOffsetTRelativeSlot(_Parameter.RAW_DATA, raw, 0)
    return int(builder.EndObject())


def read_adapter(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The tensors of an adapter file by name.

    Raises:
        CheckpointError: if it cannot be read or is no adapter file.
    """
    with loading(path):
        content = pathlib.Path(path).read_bytes()
        if content[4:8] != IDENTIFIER:
            raise CheckpointError("it is not an adapter file")
        root = Buffer(content).root()
        version = root.int32(_Root.FORMAT_VERSION)
        if version != FORMAT_VERSION:
            raise CheckpointError(
                f"its format is version {version}, only {FORMAT_VERSION} can be read"
            )
        return dict(map(_read_tensor, root.tables(_Root.PARAMETERS) or []))


def _read_tensor(table: Table) -> tuple[str, Array]:
    name = table.string(_Parameter.NAME)
    raw, dims = table.bytes(_Parameter.RAW_DATA), table.int64s(_Parameter.DIMS)
    code = table.int32(_Parameter.ELEMENT_TYPE)
    if name is None or raw is None or dims is None:
        raise CheckpointError("the file is damaged: a tensor lacks its name, shape or values")
    if code not in ELEMENT_TYPES:
        raise CheckpointError(f"tensor '{name}' has element type {code}, which is not known")
    check_shape(name, dims)
    return name, from_raw(name, raw, ELEMENT_TYPES[code], dims)
