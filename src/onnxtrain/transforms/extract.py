"""Cut a model down to some outputs, and put values into its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from onnxtrain.graph.edit import is_used, remove_dead
from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.training_graph import set_outputs


def extract(
    model: ir.Model, outputs: Sequence[str], values: Mapping[str, npt.NDArray[Any]]
) -> ir.Model:
    """A model that computes the named values, with parameters as initializers; changes ``model``.

    Raises:
        GraphError: if an output is not in the graph.
    """
    prepare(model)
    graph = model.graph
    set_outputs(graph, outputs)
    remove_dead(graph)
    kept = []
    for value in graph.inputs:
        if value.name in values:
            value.const_value = ir.tensor(values[str(value.name)], name=value.name)
        elif is_used(value):
            kept.append(value)
    parameters = [v for v in graph.inputs if v.name in values and is_used(v)]
    graph.inputs.clear()
    graph.inputs.extend(kept)
    for value in parameters:
        graph.register_initializer(value)
    return model
