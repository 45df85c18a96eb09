"""Operators that work element by element, where only the next one reads what one gives, as one.

Values between them then stay in registers. A chain ends in one value and may begin in several.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxtrain.graph.edit import detach, take_over
from onnxtrain.types import FLOATS, MS, ONNX, OWN

MOST_INPUTS, MOST_LINES = 8, 16
_OPERATORS = {
    ONNX: {"Add", "Sub", "Mul", "Div", "Sum", "Neg", "Abs", "Exp", "Sqrt", "Reciprocal", "Relu",
           "Sigmoid", "Where"},
    MS: {"ReluGrad", "SigmoidGrad", "TanhGrad", "QuickGelu", "QuickGeluGrad"},
}  # fmt: skip
_COMPARE = {"Greater", "Less", "GreaterOrEqual", "LessOrEqual"}
_DECIDE = {"And", "Or", "Not"}


@dataclasses.dataclass
class _Chain:
    """Nodes in order, what they read from outside, and the type of their numbers."""

    dtype: ir.DataType | None
    nodes: list[ir.Node] = dataclasses.field(default_factory=list)
    inputs: list[ir.Value] = dataclasses.field(default_factory=list)


def join_elementwise(model: ir.Model) -> int:
    """Join every chain of two or more such operators; gives their number."""
    graph = model.graph
    count, replaced = 0, list[ir.Node]()
    for node in reversed(list(graph)):
        if _fits(node):
            chain = _Chain(node.outputs[0].dtype)
            _collect(node, chain, MOST_LINES)
            if len(chain.nodes) > 1 and _is_of_one_type(chain):
                _join(graph, chain)
                replaced += detach(*chain.nodes)
                count += 1
    if count:
        graph.remove(replaced, safe=True)
        graph.opset_imports.setdefault(OWN, 1)
    return count


def _fits(node: ir.Node) -> bool:
    """Whether a node computes floating point numbers of one type; a detached one does not.

    What a Where chooses by must be compared and decided for it alone.
    """
    if node.op_type not in _OPERATORS.get(node.domain, ()):
        return False
    given, out = list(node.inputs), node.outputs[0]
    if node.op_type == "Where" and given:
        condition = given.pop(0)
        if condition is None or not _is_condition(condition, node, out.dtype):
            return False
    return out.dtype in FLOATS and all(v is not None and v.dtype == out.dtype for v in given)


def _is_condition(
    value: ir.Value, reader: ir.Node, dtype: ir.DataType | None, room: int = MOST_LINES
) -> bool:
    """Whether a truth value comes of comparing numbers of a type, for one reader of its shape.

    One that as many lines as there is room for do not reach down to does not.
    """
    node = value.producer()
    if node is None or node.domain != ONNX or not room or not _is_inside(value, reader):
        return False
    if node.op_type in _COMPARE:
        return all(v is not None and v.dtype == dtype for v in node.inputs)
    decides = node.op_type in _DECIDE
    given = [v for v in node.inputs if v is not None]
    return decides and all(_is_condition(v, node, dtype, room - 1) for v in given)


def _is_inside(value: ir.Value, reader: ir.Node) -> bool:
    """Whether a node alone reads a value, which has the shape of what it makes of it."""
    producer = value.producer()
    return (
        producer is not None
        and len(value.uses()) == 1
        and not value.is_graph_output()
        and producer.graph is reader.graph
        and value.shape is not None
        and value.shape == reader.outputs[0].shape
    )


def _is_of_one_type(chain: _Chain) -> bool:
    """Whether inputs are few, and none is a truth value of a chain that was cut."""
    kinds = {value.dtype for value in chain.inputs}
    return len(chain.inputs) <= MOST_INPUTS and len(kinds) == 1


def _collect(node: ir.Node, chain: _Chain, room: int) -> int:
    """Note a node and, before it, those that it alone reads; gives how many more may follow."""
    room -= 1
    for value in node.inputs:
        assert value is not None
        producer = value.producer()
        joins = (
            producer is not None
            and room > 0
            and (_fits(producer) or _is_condition(value, node, chain.dtype))
            and _is_inside(value, node)
        )
        if joins and producer is not None:
            room = _collect(producer, chain, room)
        elif value not in chain.inputs:
            chain.inputs.append(value)
    chain.nodes.append(node)
    return room


def _join(graph: ir.Graph, chain: _Chain) -> None:
    numbers = {value: index for index, value in enumerate(chain.inputs)}
    lines = []
    for node in chain.nodes:
        alpha = node.attributes.get("alpha")
        name = node.op_type if alpha is None else f"{node.op_type}:{alpha.as_float()!r}"
        lines.append(" ".join([name, *(str(numbers[v]) for v in node.inputs if v is not None)]))
        numbers[node.outputs[0]] = len(numbers)
    last = chain.nodes[-1]
    joined = ir.node(
        "Elementwise",
        chain.inputs,
        {"steps": "; ".join(lines)},
        domain=OWN,
        name=f"{last.name}_Chain",
    )
    graph.insert_before(last, joined)
    take_over(last.outputs[0], joined.outputs[0])
