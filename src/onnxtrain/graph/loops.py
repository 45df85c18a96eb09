"""Loops as files have them, in the form that others rely on.

The number of the iteration and the condition are scalars in the body. What a body hands on
unchanged is no state: the body reads it from outside, so that a weight is one in the body too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.infer import declare_constant
from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import ONNX

_GIVEN = 2
"""The body's own inputs, before the carried values: iteration and condition."""


def settle_loops(model: ir.Model) -> None:
    """Bring every Loop into that form, inner ones first, in place."""
    for node in reversed(list(all_nodes(model.graph))):
        if node.domain == ONNX and node.op_type == "Loop" and "body" in node.attributes:
            body = node.attributes["body"].as_graph()
            for value in body.inputs[:_GIVEN]:
                _make_scalar(value, body)
            _capture_unchanged(node, body)


def _make_scalar(value: ir.Value, body: ir.Graph) -> None:
    """Let a body that declares a vector of one make that from a scalar itself."""
    if value.shape is None or len(value.shape) != 1:
        return
    value.shape = ir.Shape([])
    uses = list(value.uses())
    if not uses and not value.is_graph_output():
        return
    name = unique_name(body, f"{value.name}_one")
    one = ir.Value(name=name, const_value=ir.tensor(np.asarray([1], np.int64), name=name))
    declare_constant(one)
    body.register_initializer(one)
    vector = ir.node("Reshape", [value, one], name=f"{value.name}_as_vector")
    vector.outputs[0].name = unique_name(body, f"{value.name}_vector")
    for user, index in uses:
        user.replace_input_with(index, vector.outputs[0])
    for index, output in enumerate(body.outputs):
        if output is value:
            body.outputs[index] = vector.outputs[0]
    first = next(iter(body), None)
    if first is None:
        body.append(vector)
    else:
        body.insert_before(first, vector)


def _capture_unchanged(node: ir.Node, body: ir.Graph) -> None:
    """Take carried values that the body returns as they came off the list."""
    unchanged = [i for i in range(len(node.inputs) - _GIVEN) if _is_unchanged(node, body, i)]
    if not unchanged:
        return
    for index in reversed(unchanged):
        initial, carried = node.inputs[_GIVEN + index], body.inputs[_GIVEN + index]
        assert initial is not None
        body.outputs.pop(1 + index)
        body.inputs.pop(_GIVEN + index)
        carried.replace_all_uses_with(initial)
        if index < len(node.outputs):
            node.outputs[index].replace_all_uses_with(initial)
    _without(node, unchanged)


def _is_unchanged(node: ir.Node, body: ir.Graph, index: int) -> bool:
    carried = body.inputs[_GIVEN + index]
    if body.outputs[1 + index] is not carried or node.inputs[_GIVEN + index] is None:
        return False
    returned = index < len(node.outputs) and node.outputs[index].is_graph_output()
    return not returned and sum(output is carried for output in body.outputs) == 1


def _without(node: ir.Node, dropped: Sequence[int]) -> None:
    """Put a Loop in the place of one, without some of its carried values."""
    graph = node.graph
    assert graph is not None
    new = ir.Node(
        node.domain,
        node.op_type,
        [v for i, v in enumerate(node.inputs) if i - _GIVEN not in dropped],
        list(node.attributes.values()),
        num_outputs=sum(i not in dropped for i in range(len(node.outputs))),
        name=node.name,
        doc_string=node.doc_string,
        metadata_props=dict(node.metadata_props),
    )
    graph.insert_before(node, new)
    kept = [value for i, value in enumerate(node.outputs) if i not in dropped]
    for old, value in zip(kept, new.outputs, strict=True):
        value.name, value.type, value.shape = old.name, old.type, old.shape
        old.replace_all_uses_with(value, replace_graph_outputs=True)
    graph.remove(node, safe=True)
