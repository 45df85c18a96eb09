"""Where a tensor is used, seen through operators that only move numbers."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxtrain.types import ONNX

MOVERS = frozenset(
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
_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
LINEAR = _CONVOLUTIONS | {"Einsum", "FusedMatMul", "Gemm", "MatMul"}
"""Operators that multiply by matrices or filters."""


def is_linear(value: ir.Value) -> bool:
    """Whether a value is the result of a matrix product or convolution."""
    node = value.producer()
    return node is not None and node.op_type in LINEAR


def features(value: ir.Value) -> int | None:
    """How many features such a result has, None if that is not known."""
    node, axis = value.producer(), -1
    if node is not None and node.op_type in _CONVOLUTIONS:
        axis = 1
    if value.shape is None or len(value.shape) <= max(axis, 0):
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) else None


def is_mover(node: ir.Node) -> bool:
    """Whether a node only moves, repeats or rounds numbers."""
    return node.domain == ONNX and node.op_type in MOVERS


def followers(node: ir.Node, ops: frozenset[str]) -> Iterator[ir.Node]:
    """Nodes that read what a node makes, directly or behind operators of a set, and itself."""
    seen, open_ = {node}, [node]
    while open_:
        current = open_.pop()
        yield current
        if current.domain == ONNX and current.op_type in ops:
            behind = [use.node for value in current.outputs for use in value.uses()]
            open_ += [one for one in dict.fromkeys(behind) if one not in seen]
            seen.update(behind)


def in_group_norm(node: ir.Node) -> bool:
    """Whether an InstanceNormalization normalises groups of channels.

    That is how a group normalisation is written where there is no operator for it: groups take the
    place of channels, between two Reshape nodes, and what scales the channels comes behind them.
    """
    if node.op_type != "InstanceNormalization":
        return False
    given = node.inputs[0]
    before = None if given is None else given.producer()
    behind = {use.node.op_type for use in node.outputs[0].uses()}
    return before is not None and before.op_type == "Reshape" and behind == {"Reshape"}


def under_root(node: ir.Node) -> bool:
    """Whether a node takes the root of a constant, or adds a single number to it for that.

    That is how a normalisation is written whose variance is known, where no operator is used.
    """
    if node.domain != ONNX or node.op_type != "Add":
        return _is_root(node)
    behind = [use.node for use in node.outputs[0].uses()]
    others = [v.const_value for v in node.inputs if v is not None]
    single = any(one is not None and one.size == 1 for one in others)
    return single and bool(behind) and all(_is_root(one) for one in behind)


def _is_root(node: ir.Node) -> bool:
    if node.domain != ONNX or node.op_type not in ("Pow", "Sqrt"):
        return False
    if node.op_type == "Sqrt":
        return True
    exponent = node.inputs[1].const_value if node.inputs[1] is not None else None
    return exponent is not None and exponent.size == 1 and abs(exponent.numpy().item()) == 0.5


def final_uses(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """Every node that computes with a tensor, and as which of its inputs.

    A node that moves the tensor into an output of the graph counts itself: behind it is nothing.
    """
    seen: set[ir.Value] = set()
    open_ = [value]
    while open_:
        current = open_.pop()
        for node, index in current.uses():
            result = node.outputs[0]
            moved = is_mover(node) and not (node.op_type == "CastLike" and index)
            if not moved or result.is_graph_output() or not result.uses():
                yield node, index
            elif result not in seen:
                seen.add(result)
                open_.append(result)
