"""Numbers that queries or keys are multiplied by, before their heads are apart, come after that.

Attention then takes them for a part of its scale, and nothing is multiplied.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.reading import factor_of, is_op, only_reader, rank

_LAYOUTS = ("Reshape", "Transpose")


def move_factors(graph: ir.Graph) -> None:
    """Move every factor of a value that is only brought into the layout of a product, in place."""
    for node in list(graph):
        scaled = factor_of(node) if is_op(node, "Mul", "Div") else None
        last = None if scaled is None else _last_layout(node.outputs[0])
        if scaled is None or last is None:
            continue
        x = scaled[0]
        number = next(value for value in node.inputs if value is not x)
        value = last.outputs[0]
        assert number is not None
        if (rank(number) or 0) > (rank(value) or 0) or (rank(number) is None):
            continue
        op = Ops(graph, f"{node.name}/")
        moved = op.Mul(value, number) if node.op_type == "Mul" else op.Div(value, number)
        value.replace_all_uses_with(moved)
        op.nodes[-1].replace_input_with(0, value)
        graph.insert_after(last, op.nodes)
        node.outputs[0].replace_all_uses_with(x)
        graph.remove(node, safe=True)


def _last_layout(value: ir.Value) -> ir.Node | None:
    """The last of the nodes that only move a value, one after the other, before a product."""
    last = None
    while (node := only_reader(value, *_LAYOUTS)) is not None and node.inputs[0] is value:
        if len(node.inputs) > 1 and node.inputs[1] is value:
            return None
        last, value = node, node.outputs[0]
    return None if last is None or only_reader(value, "MatMul") is None else last
