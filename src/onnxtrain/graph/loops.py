"""Loops as files have them, in the form that others rely on.

The number of the iteration and the condition are scalars in the body. What a body hands on
unchanged is no state: the body reads it from outside, so that a weight is one in the body too.
Some exporters hand values on as ``Squeeze(Unsqueeze(x) + 0)``, which is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.counted import count_iterations
from onnxtrain.graph.edit import declare_constant, is_used, unique_name
from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import ONNX

_GIVEN = 2
"""The body's own inputs, before the carried values: iteration and condition."""


def settle_loops(model: ir.Model) -> None:
    """Bring every Loop into that form, inner ones first, in place."""
    loops = [n for n in all_nodes(model.graph) if n.op_type == "Loop" and n.domain == ONNX]
    for node in reversed(loops):
        if "body" in node.attributes:
            body = node.attributes["body"].as_graph()
            for value in body.inputs[:_GIVEN]:
                _make_scalar(value, body)
            _undo_assignments(body)
            settled = _capture_unchanged(node, body)
            if settled is not None:
                count_iterations(settled, body)


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


def _undo_assignments(body: ir.Graph) -> None:
    """Leave out nodes of a body that give back what they read."""
    for node in list(body):
        same = _given_back(node)
        if same is None or (node.outputs[0].is_graph_output() and not _can_return(body, same)):
            continue
        if same.type is None:
            same.type, same.shape = node.outputs[0].type, node.outputs[0].shape
        node.outputs[0].replace_all_uses_with(same, replace_graph_outputs=True)
        _remove_unused(body, node)


def _given_back(node: ir.Node) -> ir.Value | None:
    """The input that a node gives back, if it adds zero or undoes an Unsqueeze."""
    if node.domain != ONNX or not node.inputs or node.inputs[0] is None:
        return None
    first, maker = node.inputs[0], node.inputs[0].producer()
    if maker is None or maker.domain != ONNX or maker.op_type not in ("Unsqueeze", "Add"):
        return None
    if node.op_type == "Squeeze" and maker.op_type == "Unsqueeze":
        axes = _axes(node)
        return maker.inputs[0] if axes is not None and axes == _axes(maker) else None
    if node.op_type == "Add" and maker.op_type == "Unsqueeze":
        return first if _is_zero(node.inputs[1], _axes(maker)) else None
    return None


def _axes(node: ir.Node) -> list[int] | None:
    """The axes of a Squeeze or an Unsqueeze, if they are known and counted from the front."""
    if "axes" in node.attributes:
        axes = list(node.attributes["axes"].as_ints())
    else:
        given = node.inputs[1] if len(node.inputs) > 1 else None
        if given is None or not given.is_initializer() or given.const_value is None:
            return None
        axes = given.const_value.numpy().reshape(-1).tolist()
    return axes if min(axes, default=0) >= 0 else None


def _is_zero(value: ir.Value | None, axes: Sequence[int] | None) -> bool:
    """Whether a value is a zero of no more axes than an Unsqueeze has made."""
    if value is None or axes is None or not value.is_initializer() or value.const_value is None:
        return False
    tensor = value.const_value
    return tensor.size == 1 and len(tensor.shape) <= len(axes) and not np.any(tensor.numpy())


def _can_return(body: ir.Graph, value: ir.Value) -> bool:
    """Whether a body may return a value: its own, and only once."""
    maker = value.producer()
    own = maker.graph is body if maker is not None else value in list(body.inputs)
    return own and not value.is_graph_output()


def _remove_unused(body: ir.Graph, node: ir.Node | None) -> None:
    """Remove a node and what was made for it alone."""
    while node is not None and not any(is_used(value) for value in node.outputs):
        maker = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
        body.remove(node, safe=True)
        node = maker if maker is not None and maker.graph is body else None


def _capture_unchanged(node: ir.Node, body: ir.Graph) -> ir.Node | None:
    """Take carried values that the body returns as they came off the list; gives the Loop then."""
    unchanged = [i for i in range(len(node.inputs) - _GIVEN) if _is_unchanged(node, body, i)]
    if not unchanged:
        return node
    for index in reversed(unchanged):
        initial, carried = node.inputs[_GIVEN + index], body.inputs[_GIVEN + index]
        assert initial is not None
        body.outputs.pop(1 + index)
        body.inputs.pop(_GIVEN + index)
        carried.replace_all_uses_with(initial)
        if index < len(node.outputs):
            node.outputs[index].replace_all_uses_with(initial)
    return _without(node, unchanged)


def _is_unchanged(node: ir.Node, body: ir.Graph, index: int) -> bool:
    carried = body.inputs[_GIVEN + index]
    if body.outputs[1 + index] is not carried or node.inputs[_GIVEN + index] is None:
        return False
    returned = index < len(node.outputs) and node.outputs[index].is_graph_output()
    return not returned and sum(output is carried for output in body.outputs) == 1


def _without(node: ir.Node, dropped: Sequence[int]) -> ir.Node | None:
    """Put a Loop without some of its carried values in the place of one; none if none is left."""
    graph = node.graph
    assert graph is not None
    kept = [value for i, value in enumerate(node.outputs) if i not in dropped]
    if not kept:
        graph.remove(node, safe=True)
        return None
    new = ir.Node(
        node.domain,
        node.op_type,
        [v for i, v in enumerate(node.inputs) if i - _GIVEN not in dropped],
        list(node.attributes.values()),
        num_outputs=len(kept),
        name=node.name,
        doc_string=node.doc_string,
        metadata_props=dict(node.metadata_props),
    )
    graph.insert_before(node, new)
    for old, value in zip(kept, new.outputs, strict=True):
        value.name, value.type, value.shape = old.name, old.type, old.shape
        old.replace_all_uses_with(value, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    return new
