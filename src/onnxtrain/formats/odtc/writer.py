"""Plain data to the bytes of a checkpoint."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import BinaryIO

import flatbuffers
import numpy as np

from onnxtrain.errors import CheckpointError
from onnxtrain.formats.arrays import Array, raw_bytes, storable
from onnxtrain.formats.odtc import schema
from onnxtrain.formats.odtc.data import ELEMENT_TYPES, CheckpointData, OptimizerGroup

EXTERNAL_THRESHOLD = 1800 * 2**20
"""Bytes from which on tensors go to a data file; FlatBuffers end at 2 GiB."""

_SMALLEST_EXTERNAL = 64
_ALIGNMENT = 8
_TABLE_ROOM = 256

_CODES = {dtype: code for code, dtype in ELEMENT_TYPES.items()}

Writer = Callable[[BinaryIO], None]


def encode(data: CheckpointData, external_threshold: int) -> tuple[Writer, Writer | None]:
    """Functions that write the checkpoint file and, if one is needed, its data file.

    Raises:
        CheckpointError: if the format cannot hold the data.
    """
    arrays = list(_arrays(data))
    total = 0 if data.nominal else sum(array.nbytes for array in arrays)
    external = not data.nominal and total >= min(external_threshold, EXTERNAL_THRESHOLD)
    room = (0 if external else total) + _TABLE_ROOM * (len(arrays) + 4)
    builder = flatbuffers.Builder(min(room, flatbuffers.Builder.MAX_BUFFER_SIZE))
    encoder = _Encoder(builder, nominal=data.nominal, external=external)
    encoder.checkpoint(data)
    return encoder.write_main, encoder.write_data if external else None


def _arrays(data: CheckpointData) -> Iterable[Array]:
    yield from data.trainable.values()
    yield from data.frozen.values()
    for group in data.optimizer_groups.values():
        for moments in group.states.values():
            yield from moments.values()


class _Encoder:
    """Builds the tables from the leaves up and collects the tensors of the data file."""

    def __init__(self, builder: flatbuffers.Builder, *, nominal: bool, external: bool) -> None:
        self._builder = builder
        self._nominal = nominal
        self._external = external
        self._data: list[tuple[int, Array]] = []
        self._data_end = 0

    def write_main(self, handle: BinaryIO) -> None:
        """Write the finished checkpoint file."""
        handle.write(memoryview(self._builder.Bytes)[self._builder.Head() :])

    def write_data(self, handle: BinaryIO) -> None:
        """Write the data file: each tensor at its offset, zeros between them."""
        end = 0
        for offset, array in self._data:
            handle.write(bytes(offset - end))
            handle.write(raw_bytes(array))
            end = offset + array.nbytes

    def checkpoint(self, data: CheckpointData) -> None:
        """Build the root table."""
        module = self._module(data)
        groups = self._vector(self._group(n, g) for n, g in data.optimizer_groups.items())
        bag = self._bag(data.properties) if data.properties else None
        builder = self._builder
        builder.StartObject(len(schema.Checkpoint))
        builder.PrependInt32Slot(schema.Checkpoint.VERSION, schema.VERSION, 0)
        self._offset(schema.Checkpoint.MODULE_STATE, module)
        self._offset(schema.Checkpoint.OPTIMIZER_GROUPS, groups)
        if bag is not None:
            self._offset(schema.Checkpoint.PROPERTY_BAG, bag)
        builder.Finish(builder.EndObject(), file_identifier=schema.IDENTIFIER)

    def _module(self, data: CheckpointData) -> int:
        if both := sorted(data.trainable.keys() & data.frozen.keys()):
            raise CheckpointError(f"'{both[0]}' is both trainable and frozen")
        trainable = self._tensors(data.trainable)
        frozen = self._tensors(data.frozen)
        builder = self._builder
        builder.StartObject(len(schema.ModuleState))
        self._offset(schema.ModuleState.TRAINABLE, trainable)
        self._offset(schema.ModuleState.FROZEN, frozen)
        builder.PrependBoolSlot(schema.ModuleState.IS_NOMINAL, self._nominal, False)
        builder.PrependBoolSlot(schema.ModuleState.HAS_EXTERNAL_DATA, self._external, False)
        return int(builder.EndObject())

    def _group(self, name: str, group: OptimizerGroup) -> int:
        step = _int64(group.step, f"step of optimizer group '{name}'")
        rate = _float32(group.initial_learning_rate, f"learning rate of optimizer group '{name}'")
        text = self._text(name)
        states = self._vector(self._state(n, moments) for n, moments in group.states.items())
        builder = self._builder
        builder.StartObject(len(schema.OptimizerGroup))
        self._offset(schema.OptimizerGroup.NAME, text)
        builder.PrependInt64Slot(schema.OptimizerGroup.STEP, step, 0)
        builder.PrependFloat32Slot(schema.OptimizerGroup.INITIAL_LEARNING_RATE, rate, 0.0)
        self._offset(schema.OptimizerGroup.STATES, states)
        return int(builder.EndObject())

    def _state(self, name: str, moments: Mapping[str, Array]) -> int:
        text, tensors = self._text(name), self._tensors(moments)
        self._builder.StartObject(len(schema.ParameterState))
        self._offset(schema.ParameterState.NAME, text)
        self._offset(schema.ParameterState.MOMENTS, tensors)
        return int(self._builder.EndObject())

    def _bag(self, properties: Mapping[str, int | float | str]) -> int:
        vectors: dict[int, list[int]] = {slot: [] for slot in schema.PropertyBag}
        for name, value in properties.items():
            slot, table = self._property(name, value)
            vectors[slot].append(table)
        offsets = {slot: self._vector(tables) for slot, tables in vectors.items()}
        self._builder.StartObject(len(schema.PropertyBag))
        for slot, offset in offsets.items():
            self._offset(slot, offset)
        return int(self._builder.EndObject())

    def _property(self, name: str, value: int | float | str) -> tuple[int, int]:
        builder, what = self._builder, f"property '{name}'"
        text = self._text(name)
        content = self._text(value) if isinstance(value, str) else 0
        builder.StartObject(len(schema.Property))
        self._offset(schema.Property.NAME, text)
        if isinstance(value, str):
            slot = schema.PropertyBag.STRINGS
            self._offset(schema.Property.VALUE, content)
        elif isinstance(value, (int, np.integer, np.bool_)):
            slot = schema.PropertyBag.INTS
            builder.PrependInt64Slot(schema.Property.VALUE, _int64(value, what), 0)
        elif isinstance(value, (float, np.floating)):
            slot = schema.PropertyBag.FLOATS
            builder.PrependFloat32Slot(schema.Property.VALUE, _float32(value, what), 0.0)
        else:
            raise CheckpointError(
                f"{what} is a {type(value).__name__}, only int, float and str can be stored"
            )
        return slot, int(builder.EndObject())

    def _tensors(self, tensors: Mapping[str, Array]) -> int:
        return self._vector(self._tensor(name, array) for name, array in tensors.items())

    def _tensor(self, name: str, array: Array) -> int:
        array = storable(name, array, _CODES)
        text = self._text(name)
        dims = self._dims(() if self._nominal else array.shape)
        external = self._external and array.nbytes >= _SMALLEST_EXTERNAL
        raw = None if external else self._raw(array)
        builder = self._builder
        builder.StartObject(max(schema.Tensor) + 1)
        self._offset(schema.Tensor.NAME, text)
        self._offset(schema.Tensor.DIMS, dims)
        builder.PrependInt32Slot(schema.Tensor.ELEMENT_TYPE, _CODES[array.dtype], 0)
        if raw is None:
            offset = self._reserve(array)
            builder.PrependInt64Slot(schema.Tensor.EXTERNAL_OFFSET, offset, schema.NO_OFFSET)
        else:
            self._offset(schema.Tensor.RAW_DATA, raw)
        return int(builder.EndObject())

    def _dims(self, shape: tuple[int, ...]) -> int:
        return int(self._builder.CreateNumpyVector(np.array(shape, np.int64)))

    def _raw(self, array: Array) -> int:
        content = b"" if self._nominal else array.tobytes()
        self._builder.Prep(_ALIGNMENT, len(content))
        return int(self._builder.CreateByteVector(content))

    def _reserve(self, array: Array) -> int:
        """Offset of a tensor in the data file."""
        offset = math.ceil(self._data_end / _ALIGNMENT) * _ALIGNMENT
        self._data.append((offset, array))
        self._data_end = offset + array.nbytes
        return offset

    def _vector(self, tables: Iterable[int]) -> int:
        offsets = list(tables)
        self._builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self._builder.PrependUOffsetTRelative(offset)
        return int(self._builder.EndVector())

    def _text(self, text: str) -> int:
        try:
            return int(self._builder.CreateString(text.encode()))
        except UnicodeEncodeError as error:
            raise CheckpointError(f"{text!r} cannot be stored as UTF-8") from error

    def _offset(self, slot: int, offset: int) -> None:
        self._builder.PrependUOffsetTRelativeSlot(slot, offset, 0)


def _int64(value: int | np.integer | np.bool_, what: str) -> int:
    if not -(2**63) <= int(value) < 2**63:
        raise CheckpointError(f"{what} is {value}, which does not fit into 64 bits")
    return int(value)


def _float32(value: float | np.floating, what: str) -> float:
    try:
        struct.pack("<f", float(value))
    except OverflowError as error:
        raise CheckpointError(f"{what} is {value}, which does not fit into float32") from error
    return float(value)
