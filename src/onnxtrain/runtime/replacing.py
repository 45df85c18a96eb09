"""What options put into a model: sizes of free dimensions, values of initializers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxtrain.errors import OptionError
from onnxtrain.graph.walk import all_graphs, all_nodes
from onnxtrain.kernels.dtypes import array_of, from_torch, to_torch
from onnxtrain.runtime.ort_value import OrtValue
from onnxtrain.types import DataType, dtype_name


@dataclasses.dataclass
class Replacing:
    """Changes of a model, made after it is read and before its external data is looked for.

    Attributes:
        sizes: Sizes of free dimensions by their name.
        denoted: Sizes of free dimensions by their denotation.
        values: Values of initializers.
        external: Values of initializers whose data lies in other files.
        files: Contents of such files by their location.
    """

    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    denoted: dict[str, int] = dataclasses.field(default_factory=dict)
    values: dict[str, OrtValue] = dataclasses.field(default_factory=dict)
    external: dict[str, OrtValue] = dataclasses.field(default_factory=dict)
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)

    def __call__(self, model: ir.Model) -> None:
        """Change a model.

        Raises:
            OptionError: if a size, a type or a shape contradicts the model's.
        """
        if self.sizes or self.denoted:
            fix_sizes(model, {**self._by_denotation(model), **self.sizes})
        if self.values or self.external or self.files:
            self._replace(model)

    def _by_denotation(self, model: ir.Model) -> dict[str, int]:
        """Sizes of the names of denoted dimensions; dimensions without a name get theirs."""
        found: dict[str, int] = {}
        for value in model.graph.inputs:
            shape = value.shape
            for axis, dim in enumerate(shape or ()):
                size = self.denoted.get((shape and shape.get_denotation(axis)) or "")
                if size is None or shape is None or dim == size:
                    continue
                if isinstance(dim, int):
                    raise OptionError(
                        f"cannot make axis {axis} of input '{value.name}' "
                        f"({shape.get_denotation(axis)}) of size {size}: its size is {dim}"
                    )
                if dim.value is None:
                    _set(value, axis, size)
                else:
                    found[dim.value] = size
        return found

    def _replace(self, model: ir.Model) -> None:
        initializers: dict[str, ir.Value] = {}
        for graph in all_graphs(model.graph):
            initializers.update(graph.initializers)
        for name, given in self.external.items():
            if name not in initializers:
                raise OptionError(f"the model has no initializer '{name}' to be given a value")
            if not isinstance(initializers[name].const_value, ir.ExternalTensor):
                raise OptionError(
                    f"initializer '{name}' is in the model itself, not in another file\n"
                    "  replace it with add_initializer"
                )
            _give(initializers[name], given)
        for name in self.values.keys() & initializers.keys():
            _give(initializers[name], self.values[name])
        for value in initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) and str(tensor.location) in self.files:
                value.const_value = _cut(tensor, self.files[str(tensor.location)])


def checked_size(kind: str, name: str, size: Any) -> int:
    """A size that a free dimension can have.

    Raises:
        OptionError: if it is none.
    """
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 0:
        raise OptionError(f"the size of the dimension of {kind} '{name}' cannot be {size!r}")
    return int(size)


def checked_value(names: Mapping[str, OrtValue], name: str, value: Any) -> OrtValue:
    """A value for an initializer that has none yet.

    Raises:
        OptionError: if it is no tensor, or there is one already.
    """
    if not isinstance(value, OrtValue) or not value.is_tensor():
        raise OptionError(
            f"initializer '{name}' is given as a {type(value).__name__}\n"
            "  make a value of it with OrtValue.ortvalue_from_numpy"
        )
    if name in names:
        raise OptionError(f"initializer '{name}' has been given a value before")
    return value


def same_length(what: str, *lists: Sequence[Any]) -> None:
    """Refuse lists of different lengths.

    Raises:
        OptionError: if they are.
    """
    if len({len(items) for items in lists}) > 1:
        counts = ", ".join(str(len(items)) for items in lists)
        raise OptionError(f"{what} must have the same length, have {counts}")


def fix_sizes(model: ir.Model, sizes: Mapping[str, int]) -> None:
    """Give dimensions of these names sizes, wherever they are."""
    values = [*model.graph.inputs, *model.graph.outputs]
    values += [output for node in all_nodes(model.graph) for output in node.outputs]
    for graph in all_graphs(model.graph):
        values += [*graph.inputs, *graph.outputs]
    for value in values:
        for axis, dim in enumerate(value.shape or ()):
            size = None if isinstance(dim, int) else sizes.get(dim.value or "")
            if size is not None:
                _set(value, axis, size)


def _set(value: ir.Value, axis: int, size: int) -> None:
    shape = value.shape
    assert shape is not None
    dims = [size if i == axis else dim for i, dim in enumerate(shape)]
    value.shape = ir.Shape(dims, [shape.get_denotation(i) for i in range(len(dims))])


def _give(initializer: ir.Value, given: OrtValue) -> None:
    tensor, own = given.torch(), initializer.const_value
    assert own is not None
    fits = own.dtype != DataType.STRING and tensor.dtype == to_torch(own.dtype)
    if not fits or list(tensor.shape) != list(own.shape.numpy()):
        raise OptionError(
            f"the value given for initializer '{initializer.name}' is "
            f"{dtype_name(from_torch(tensor.dtype))}{list(tensor.shape)}, "
            f"in the model it is {dtype_name(own.dtype)}{list(own.shape.numpy())}"
        )
    array = array_of(tensor.contiguous(), own.dtype)
    initializer.const_value = ir.Tensor(array, own.dtype, name=initializer.name)


def _cut(tensor: ir.ExternalTensor, content: bytes) -> ir.TensorProtocol:
    """The tensor out of the content of its file."""
    begin = tensor.offset or 0
    end = begin + (tensor.length or tensor.nbytes)
    if end > len(content):
        raise OptionError(
            f"the content given for file '{tensor.location}' has {len(content)} bytes, "
            f"tensor '{tensor.name}' ends at byte {end}"
        )
    proto = onnx.TensorProto(
        name=tensor.name,
        data_type=int(tensor.dtype),
        dims=list(tensor.shape.numpy()),
        raw_data=content[begin:end],
    )
    return ir.serde.TensorProtoTensor(proto)
