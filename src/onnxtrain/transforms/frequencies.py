"""Which tensors are the frequencies of a position encoding, which nobody trains."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.types import FLOATS, ONNX

_WAVES = frozenset({"Cos", "Sin"})
_PRODUCTS = frozenset({"Einsum", "MatMul", "Mul"})
_MOVERS = frozenset(
    {
        "Cast",
        "CastLike",
        "Concat",
        "Expand",
        "Identity",
        "Reshape",
        "Slice",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators that only move, repeat or round numbers."""


def is_frequencies(value: ir.Value) -> bool:
    """Whether a tensor only turns positions into the angles of Sin and Cos.

    The positions are counted, so that the angles do not depend on any other number: rotary and
    sinusoidal encodings do this. A layer whose activation is a sine is fed with data instead.
    """
    waves, seen, open_ = 0, set(), [value]
    while open_:
        current = open_.pop()
        if current in seen:
            continue
        seen.add(current)
        if current.is_graph_output():
            return False
        for node, _ in current.uses():
            if _is(node, _WAVES):
                waves += 1
            elif _is(node, _MOVERS | _PRODUCTS) and _others_count(node, seen):
                open_ += node.outputs
            else:
                return False
    return waves > 0


def _is(node: ir.Node, ops: frozenset[str]) -> bool:
    return node.domain == ONNX and node.op_type in ops


def _others_count(node: ir.Node, known: set[ir.Value]) -> bool:
    """Whether what meets the tensor at a node was counted."""
    if not _is(node, _PRODUCTS):
        return True
    return all(v in known or _is_counted(v) for v in node.inputs if v is not None)


def _is_counted(value: ir.Value) -> bool:
    """Whether a value is made of whole numbers."""
    if value.dtype not in FLOATS:
        return True
    if value.const_value is not None:
        return value.const_value.size == 1
    producer = value.producer()
    if producer is None:
        return False
    if _is(producer, frozenset({"Range"})):
        return True
    given = producer.inputs[:1] if producer.op_type == "CastLike" else producer.inputs
    return _is(producer, _MOVERS | _PRODUCTS) and all(
        _is_counted(v) for v in given if v is not None
    )
