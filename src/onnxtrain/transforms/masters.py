"""Weights of few bits trained as floats: small updates would be lost in rounding otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.edit import collected_names, unique_name
from onnxtrain.transforms.weights.whole_numbers import Array, Stored, stored_weights, unpack
from onnxtrain.types import DataType

NARROW = frozenset({DataType.FLOAT16, DataType.BFLOAT16})


@dataclasses.dataclass(frozen=True)
class Masters:
    """What the file holds of weights that are trained in another form.

    Attributes:
        narrow: Types of those that are float32 in training.
        whole: How those are stored that are whole numbers in the file.
    """

    narrow: Mapping[str, DataType]
    whole: Mapping[str, Stored]

    @classmethod
    def of(cls, model: ir.Model, names: Collection[str]) -> Masters:
        """Give a prepared model the form in which weights are trained, in place."""
        whole = unpack(model, names)
        return cls(add_masters(model, names), whole)

    @classmethod
    def in_file(cls, graph: ir.Graph) -> Masters:
        """How the weights of a prepared model are stored."""
        values = graph.initializers.items()
        narrow = {name: v.dtype for name, v in values if v.dtype in NARROW and v.dtype is not None}
        return cls(narrow, stored_weights(graph))

    @property
    def names(self) -> set[str]:
        """The weights whose form changed."""
        return {*self.narrow, *self.whole}

    def stored(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Trained values as the file holds them."""
        found = dict(values)
        for name in self.names & found.keys():
            if name in self.narrow:
                found[name] = found[name].astype(self.narrow[name].numpy())
            if name in self.whole:
                found[name] = self.whole[name].whole(found[name])
        return found


def add_masters(model: ir.Model, names: Collection[str]) -> dict[str, DataType]:
    """Make initializers of 16 bits float32, each behind a Cast to what it was, in place.

    A tensor that the model itself returns stays as it is.

    Args:
        model: A prepared model.
        names: Initializers that are trained.

    Returns:
        The types that the changed initializers had, by name.
    """
    widened: dict[str, DataType] = {}
    graph, chosen = model.graph, set(names)
    with collected_names(graph):
        for name in [n for n in graph.initializers if n in chosen]:
            value = graph.initializers[name]
            tensor = value.const_value
            if tensor is None or tensor.dtype not in NARROW or value.is_graph_output():
                continue
            widened[name] = tensor.dtype
            _widen(graph, value, tensor)
    return widened


def _widen(graph: ir.Graph, value: ir.Value, tensor: ir.TensorProtocol) -> None:
    """Make an initializer float32, and let its users read it through a Cast to what it was."""
    cast = ir.node("Cast", [value], {"to": tensor.dtype}, name=f"{value.name}_Cast")
    low = cast.outputs[0]
    low.name = unique_name(graph, f"{value.name}_{tensor.dtype.name.lower()}")
    low.type, low.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
    value.replace_all_uses_with(low)
    cast.replace_input_with(0, value)
    _put_first(graph, cast)
    value.type = ir.TensorType(DataType.FLOAT)
    value.const_value = ir.Tensor(tensor.numpy().astype(np.float32), name=value.name)


def _put_first(graph: ir.Graph, node: ir.Node) -> None:
    first = next(iter(graph), None)
    if first is None:
        graph.append(node)
    else:
        graph.insert_before(first, node)
