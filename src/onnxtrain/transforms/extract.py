"""Cut a model down to some outputs, and put values into its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.graph.edit import is_used
from onnxtrain.graph.inference.infer import infer
from onnxtrain.graph.verify import verify
from onnxtrain.graph.walk import all_nodes
from onnxtrain.transforms.training_graph import set_outputs
from onnxtrain.types import MS


def extract(
    model: ir.Model, outputs: Sequence[str], values: Mapping[str, npt.NDArray[Any]]
) -> ir.Model:
    """A model that computes the named values, with parameters as initializers; changes ``model``.

    Raises:
        GraphError: if an output is not in the graph, or none is named.
    """
    if isinstance(outputs, str) or not outputs:
        raise GraphError(f"give a list of the outputs to keep, not {outputs!r}")
    verify(model)
    infer(model)
    graph = model.graph
    set_outputs(graph, outputs)
    used = [value for value in graph.inputs if is_used(value)]
    graph.inputs.clear()
    for value in used:
        name = str(value.name)
        if name in values:
            value.const_value = ir.tensor(values[name], name=name)
            graph.register_initializer(value)
        else:
            graph.inputs.append(value)
    if all(node.domain != MS for node in all_nodes(graph)):
        graph.opset_imports.pop(MS, None)  # the loss may have needed it
    return model
