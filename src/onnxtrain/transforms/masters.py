"""Weights of 16 bits trained as float32: small updates would be lost in rounding otherwise."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.edit import unique_name
from onnxtrain.types import DataType

NARROW = frozenset({DataType.FLOAT16, DataType.BFLOAT16})


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
    graph = model.graph
    for name in [n for n in graph.initializers if n in names]:
        value = graph.initializers[name]
        tensor = value.const_value
        if tensor is None or tensor.dtype not in NARROW or value.is_graph_output():
            continue
        widened[name] = tensor.dtype
        cast = ir.node("Cast", [value], {"to": tensor.dtype}, name=f"{name}_Cast")
        low = cast.outputs[0]
        low.name = unique_name(graph, f"{name}_{tensor.dtype.name.lower()}")
        low.type, low.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        value.replace_all_uses_with(low)
        cast.replace_input_with(0, value)
        _put_first(graph, cast)
        value.type = ir.TensorType(DataType.FLOAT)
        value.const_value = ir.Tensor(tensor.numpy().astype(np.float32), name=name)
    return widened


def _put_first(graph: ir.Graph, node: ir.Node) -> None:
    first = next(iter(graph), None)
    if first is None:
        graph.append(node)
    else:
        graph.insert_before(first, node)
