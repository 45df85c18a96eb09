"""Bytes of a checkpoint to plain data."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterable
from typing import TypeVar

import numpy as np

from onnxtrain.errors import CheckpointError
from onnxtrain.formats.arrays import Array, check_shape, from_raw, read_raw
from onnxtrain.formats.odtc import schema
from onnxtrain.formats.odtc.data import ELEMENT_TYPES, CheckpointData, OptimizerGroup
from onnxtrain.formats.odtc.flatbuffer import Buffer, Table

Value = TypeVar("Value")


def decode(content: bytes, data: io.BufferedReader | None) -> CheckpointData:
    """Read a checkpoint; ``data`` is its open data file, if there is one.

    Raises:
        CheckpointError: if the content is not a whole checkpoint of the known version.
    """
    root = _root(content)
    module = _required(root.table(schema.Checkpoint.MODULE_STATE), "parameters")
    tensors = _Tensors(data, nominal=module.flag(schema.ModuleState.IS_NOMINAL))
    trainable = tensors.read(module.tables(schema.ModuleState.TRAINABLE), "trainable parameters")
    frozen = tensors.read(module.tables(schema.ModuleState.FROZEN), "frozen parameters")
    _unique([(name, None) for name in (*trainable, *frozen)])
    groups = root.tables(schema.Checkpoint.OPTIMIZER_GROUPS) or []
    return CheckpointData(
        trainable=trainable,
        frozen=frozen,
        optimizer_groups=_unique(_optimizer_group(group, tensors) for group in groups),
        properties=_properties(root.table(schema.Checkpoint.PROPERTY_BAG)),
        nominal=tensors.nominal,
    )


def has_external_data(content: bytes) -> bool:
    """Whether a checkpoint keeps values in a data file.

    Raises:
        CheckpointError: if the content is not a checkpoint of the known version.
    """
    module = _root(content).table(schema.Checkpoint.MODULE_STATE)
    return module is not None and module.flag(schema.ModuleState.HAS_EXTERNAL_DATA)


def _root(content: bytes) -> Table:
    if content[4:8] != schema.IDENTIFIER:
        raise CheckpointError(
            "it is not a checkpoint\n"
            f"  have  {bytes(content[4:8])!r} where {schema.IDENTIFIER!r} must be"
        )
    root = Buffer(content).root()
    version = root.int32(schema.Checkpoint.VERSION)
    if version != schema.VERSION:
        raise CheckpointError(
            f"its format has version {version}, only version {schema.VERSION} can be read"
        )
    return root


class _Tensors:
    """Reads tensors from a checkpoint file and its data file."""

    def __init__(self, data: io.BufferedReader | None, nominal: bool) -> None:
        self.nominal = nominal
        self._data = data
        self._unread = 0 if data is None else os.fstat(data.fileno()).st_size
        self._data_size = self._unread

    def read(self, tables: list[Table] | None, what: str) -> dict[str, Array]:
        """The tensors of a vector by name."""
        return _unique(self._tensor(table) for table in _required(tables, what))

    def _tensor(self, table: Table) -> tuple[str, Array]:
        name = _required(table.string(schema.Tensor.NAME), "name of a tensor")
        dtype = ELEMENT_TYPES.get(code := table.int32(schema.Tensor.ELEMENT_TYPE))
        if dtype is None:
            raise CheckpointError(
                f"tensor '{name}' has element type {code}, which is not supported"
            )
        if self.nominal:
            return name, np.empty(0, dtype)
        dims = table.int64s(schema.Tensor.DIMS) or ()
        check_shape(name, dims)
        content = self._content(table, name, math.prod(dims) * dtype.itemsize)
        return name, from_raw(name, content, dtype, dims)

    def _content(self, table: Table, name: str, size: int) -> Array:
        offset = table.int64(schema.Tensor.EXTERNAL_OFFSET, schema.NO_OFFSET)
        if offset != schema.NO_OFFSET:
            return self._external(name, offset, size)
        raw = _required(table.bytes(schema.Tensor.RAW_DATA), f"values of tensor '{name}'")
        if len(raw) != size:
            raise CheckpointError(
                f"the file is damaged: tensor '{name}' has {len(raw)} bytes, its shape needs {size}"
            )
        return raw

    def _external(self, name: str, offset: int, size: int) -> Array:
        if self._data is None:
            raise CheckpointError(
                f"the values of tensor '{name}' are in a data file, which is missing\n"
                "  keep the file with the ending '.data' beside the checkpoint"
            )
        if offset < 0 or offset + size > self._data_size:
            raise CheckpointError(
                f"the data file is too short: tensor '{name}' needs bytes {offset} to "
                f"{offset + size} of {self._data_size}"
            )
        self._unread -= size
        if self._unread < 0:
            raise CheckpointError("the file is damaged: tensors overlap in the data file")
        return read_raw(name, self._data, offset, size)


def _optimizer_group(table: Table, tensors: _Tensors) -> tuple[str, OptimizerGroup]:
    name = _required(table.string(schema.OptimizerGroup.NAME), "name of an optimizer group")
    states = table.tables(schema.OptimizerGroup.STATES) or []
    group = OptimizerGroup(
        step=table.int64(schema.OptimizerGroup.STEP),
        initial_learning_rate=table.float32(schema.OptimizerGroup.INITIAL_LEARNING_RATE),
        states=_unique(_parameter_state(state, tensors) for state in states),
    )
    return name, group


def _parameter_state(table: Table, tensors: _Tensors) -> tuple[str, dict[str, Array]]:
    name = _required(table.string(schema.ParameterState.NAME), "name of an optimizer state")
    return name, tensors.read(table.tables(schema.ParameterState.MOMENTS), f"moments of '{name}'")


def _properties(bag: Table | None) -> dict[str, int | float | str]:
    if bag is None:
        return {}
    found: list[tuple[str, int | float | str]] = []
    for table in bag.tables(schema.PropertyBag.INTS) or []:
        found.append((_property_name(table), table.int64(schema.Property.VALUE)))
    for table in bag.tables(schema.PropertyBag.FLOATS) or []:
        found.append((_property_name(table), table.float32(schema.Property.VALUE)))
    for table in bag.tables(schema.PropertyBag.STRINGS) or []:
        found.append((_property_name(table), table.string(schema.Property.VALUE) or ""))
    return _unique(found)


def _property_name(table: Table) -> str:
    return _required(table.string(schema.Property.NAME), "name of a property")


def _required(value: Value | None, what: str) -> Value:
    if value is None:
        raise CheckpointError(f"the file is damaged: it has no {what}")
    return value


def _unique(items: Iterable[tuple[str, Value]]) -> dict[str, Value]:
    """A dictionary of pairs whose names must differ."""
    result: dict[str, Value] = {}
    for name, value in items:
        if name in result:
            raise CheckpointError(f"the file is damaged: it has '{name}' twice")
        result[name] = value
    return result
