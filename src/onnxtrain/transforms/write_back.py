"""Put trained values back into the original model, leaving everything else as it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from onnxtrain.errors import ParameterError


def weight_names(model: ir.Model) -> set[str]:
    """Tensors that can be written back: initializers and outputs of Constant nodes."""
    return set(model.graph.initializers) | set(_constants(model.graph))


def write_back(model: ir.Model, values: Mapping[str, npt.NDArray[Any]]) -> ir.Model:
    """Overwrite initializers and Constant nodes by name, in place.

    Raises:
        ParameterError: if the model has no such tensor.
    """
    constants = _constants(model.graph)
    for name, array in values.items():
        tensor = ir.tensor(array, name=name)
        if name in model.graph.initializers:
            value = model.graph.initializers[name]
            value.const_value = tensor
        elif name in constants:
            node = constants[name]
            node.attributes.clear()
            node.attributes["value"] = ir.AttrTensor("value", tensor)
        else:
            raise ParameterError(f"the model has no tensor '{name}' to write back")
    return model


def _constants(graph: ir.Graph) -> dict[str, ir.Node]:
    return {
        str(node.outputs[0].name): node
        for node in graph
        if node.domain == "" and node.op_type == "Constant"
    }
