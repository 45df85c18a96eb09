"""Optionals as sequences: what may be missing is kept as a flag and its elements."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.gradients.control_flow_body import control_node
from onnxtrain.gradients.sequence import same
from onnxtrain.graph.builder import Ops


def without_value(op: Ops, like: ir.Value) -> ir.Value:
    """An optional of the same type that has no value."""
    assert isinstance(like.type, ir.OptionalType)
    kind = ir.AttrTypeProto("type", ir.TypeAndShape(like.type.elem_type, None))
    made: ir.Value = op.Optional(type=kind)
    made.type = like.type
    return made


def taken_apart(op: Ops, value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Whether an optional has a value, and its elements: of a sequence all, of a tensor one."""
    assert value.dtype is not None
    has = op.OptionalHasElement(value)
    yes, no = (Ops(op.graph, f"{op.prefix}{part}/") for part in ("value", "none"))
    found = yes.OptionalGetElement(value)
    elements = same(yes, found, found) if _holds_sequence(value) else yes.SequenceConstruct(found)
    empty = no.SequenceEmpty(dtype=int(value.dtype))
    elements.type = empty.type = ir.SequenceType(ir.TensorType(value.dtype))
    return has, _either(op, has, (yes, elements), (no, empty))


def put_together(op: Ops, has: ir.Value, elements: ir.Value, like: ir.Value) -> ir.Value:
    """The optional again."""
    yes, no = (Ops(op.graph, f"{op.prefix}{part}/") for part in ("filled", "empty"))
    inner = elements if _holds_sequence(like) else yes.SequenceAt(elements, op.const(0))
    filled = yes.Optional(inner)
    filled.type = like.type
    return _either(op, has, (yes, filled), (no, without_value(no, like)))


def _holds_sequence(value: ir.Value) -> bool:
    assert isinstance(value.type, ir.OptionalType)
    return isinstance(value.type.elem_type, ir.SequenceType)


def _either(
    op: Ops, condition: ir.Value, yes: tuple[Ops, ir.Value], no: tuple[Ops, ir.Value]
) -> ir.Value:
    """One of two values, each with the nodes that make it."""
    branches = {
        name: ir.Graph([], [value], nodes=inner.nodes, name=f"{inner.prefix}branch")
        for name, (inner, value) in {"then_branch": yes, "else_branch": no}.items()
    }
    inner = Ops(op.graph, f"{op.prefix}either/")
    (result,) = control_node(inner, "If", [condition], branches, [yes[1]])
    op.nodes += inner.nodes
    return result
