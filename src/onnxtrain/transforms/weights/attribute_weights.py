"""Weights that operators hold in attributes, trained as tensors and written back as attributes.

Classical models (linear ones, support vector machines, trees) have their numbers in lists of the
node. For training such a node becomes a WithWeights, which takes them as initializers. They are
called by the name of the node and that of the attribute.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.bodies import body_tensors, subgraphs
from onnxtrain.graph.edit import fresh_name, take_over, value_names
from onnxtrain.types import ML, OWN, DataType

_AS_TENSOR = "_as_tensor"
WEIGHTS: dict[str, tuple[str, ...]] = {
    "LinearClassifier": ("coefficients", "intercepts"),
    "LinearRegressor": ("coefficients", "intercepts"),
    "SVMClassifier": ("coefficients", "rho"),
    "SVMRegressor": ("coefficients", "rho"),
    "TreeEnsemble": ("leaf_weights",),
    "TreeEnsembleClassifier": ("class_weights", "base_values"),
    "TreeEnsembleRegressor": ("target_weights", "base_values"),
}
"""Attributes with which the results grow linearly; trees may have them as tensors, too."""
_TARGETS = {"LinearRegressor": "targets", "SVMRegressor": "", "TreeEnsembleRegressor": "n_targets"}
"""Where an operator says how many numbers it gives for a row; 1 if it does not."""


@dataclasses.dataclass(frozen=True)
class AttributeWeight:
    """Numbers in an attribute of a node.

    Attributes:
        name: Their name in the whole model.
        place: Which body the node stands in, as ``graph.bodies`` calls it; empty for the model.
        node: The node.
        key: The attribute.
        tensor: What it holds.
    """

    name: str
    place: str
    node: ir.Node
    key: str
    tensor: ir.TensorProtocol

    @property
    def owner(self) -> tuple[str, str]:
        """What tells the node from all others: its body, and what it computes."""
        return self.place, first_output(name for v in self.node.outputs if (name := v.name))


def first_output(names: Iterator[str]) -> str:
    """The first output that has a name."""
    return next(filter(None, names), "")


def attribute_weights(model: ir.Model) -> list[AttributeWeight]:
    """Every weight in an attribute, under a name that nothing else in the model has."""
    graphs = [("", model.graph), *subgraphs(model.graph)]
    places = [(place, node) for place, graph in graphs for node in graph if _is_learned(node)]
    if not places:
        return []
    taken = value_names(model.graph) | {one.name for one in body_tensors(model)}
    found = []
    for place, node in places:
        for key, tensor in _numbers(node):
            name = fresh_name(f"{node.name or node.outputs[0].name}.{key}", taken)
            found.append(AttributeWeight(name, place, node, key, tensor))
    return found


def lift_attributes(model: ir.Model) -> None:
    """Make weights in attributes initializers of the model, in place."""
    graph = model.graph
    by_node: dict[ir.Node, list[AttributeWeight]] = {}
    for one in attribute_weights(model):
        by_node.setdefault(one.node, []).append(one)
    version = graph.opset_imports.get(ML, 1)
    for node, weights in by_node.items():
        graph.opset_imports.setdefault(OWN, 1)
        _replace(node, [_initializer(graph, one) for one in weights], weights, version)


def _is_learned(node: ir.Node) -> bool:
    """Whether a node has weights that its results grow with; those of a sign do not."""
    if node.domain != ML or node.op_type not in WEIGHTS:
        return False
    return not node.attributes.get_int("one_class", 0)


def _numbers(node: ir.Node) -> Iterator[tuple[str, ir.TensorProtocol]]:
    for key in WEIGHTS[node.op_type]:
        for name in (key, key + _AS_TENSOR):
            attribute = node.attributes.get(name)
            if attribute is None or attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.TENSOR:
                yield name, attribute.as_tensor()
            elif attribute.type == ir.AttributeType.FLOATS and attribute.as_floats():
                yield name, ir.tensor(np.array(attribute.as_floats(), np.float32))


def _initializer(graph: ir.Graph, one: AttributeWeight) -> ir.Value:
    tensor = ir.Tensor(np.array(one.tensor.numpy()), one.tensor.dtype, name=one.name)
    value = ir.Value(name=one.name, const_value=tensor)
    value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
    graph.register_initializer(value)
    return value


def _replace(
    node: ir.Node, values: list[ir.Value], weights: list[AttributeWeight], version: int
) -> None:
    """Put a WithWeights in the place of a node; its scores have the type that the node gives."""
    lifted = {one.key for one in weights}
    kept = {key: _plain(a.value) for key, a in node.attributes.items() if key not in lifted}
    attributes: dict[str, Any] = {
        "of": node.op_type,
        "of_domain": node.domain,
        "version": version,
        "weights": [one.key.removesuffix(_AS_TENSOR) for one in weights],
        "dtypes": _label_types(node),
        "columns": _columns(node),
        "options": json.dumps(kept),
    }
    inputs, count = [*node.inputs, *values], len(node.outputs)
    new = ir.node("WithWeights", inputs, attributes, domain=OWN, num_outputs=count, name=node.name)
    graph, made = node.graph, list(new.outputs)
    assert graph is not None
    graph.insert_after(node, new)
    if weights[-1].tensor.dtype != DataType.FLOAT and node.op_type != "TreeEnsemble":
        cast = ir.node("Cast", [made[-1]], {"to": DataType.FLOAT}, name=f"{node.name}_float")
        made[-1].name = f"{node.outputs[-1].name}_{weights[-1].key}"
        graph.insert_after(new, cast)
        made[-1] = cast.outputs[0]
    for old, value in zip(node.outputs, made, strict=True):
        take_over(old, value)
    graph.remove(node, safe=True)


def _plain(value: Any) -> Any:
    """A value of an attribute as JSON can hold it."""
    return value.numpy().tolist() if isinstance(value, ir.TensorProtocol) else value


def _label_types(node: ir.Node) -> list[int]:
    """Types of the outputs: that of labels, and 0 for scores."""
    if not node.op_type.endswith("Classifier"):
        return [0]
    named = node.attributes.get("classlabels_strings")
    return [int(DataType.STRING if named is not None and named.value else DataType.INT64), 0]


def _columns(node: ir.Node) -> int:
    """How many numbers a row of the result has; 0 if the node does not tell."""
    if node.op_type not in _TARGETS:
        return 0
    return node.attributes.get_int(_TARGETS[node.op_type], 1)
