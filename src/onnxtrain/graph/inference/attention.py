"""Shapes of Attention: where a size is not known, ONNX's inference takes it for 0 or leaves it out.

Operands are [batch, head, position, size], or [batch, position, head · size] if attributes say how
many heads there are.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.types import ONNX

Dim = int | ir.SymbolicDim | None
_SHAPED = (0, 1, 2, 4, 5)
"""Inputs that have a say: queries, keys, values, and those of the past."""


def is_attention(node: ir.Node) -> bool:
    """Whether a node is an Attention."""
    return node.domain == ONNX and node.op_type == "Attention"


def is_unsized(node: ir.Node) -> bool:
    """Whether a node is an Attention that ONNX's inference does not know all sizes of."""
    if not is_attention(node):
        return False
    given = [node.inputs[k] for k in _SHAPED if k < len(node.inputs)]
    return any(v is not None and (v.shape is None or not v.shape.is_static()) for v in given)


def result_shapes(node: ir.Node) -> list[ir.Shape | None]:
    """Shapes of the result, of keys and values with those of the past, and of the scores."""
    query, key, value = (_Heads(node, k) for k in range(3))
    batch, total = query.batch, _plus(_past(node), key.positions)
    scores = [batch, query.heads, query.positions, total]
    result: list[Dim] | None = None
    if query.rank == 4:
        result = [batch, query.heads, query.positions, value.size]
    elif query.rank == 3:
        result = [batch, query.positions, _times(query.heads, value.size)]
    kept = [[one.batch, one.heads, total, one.size] for one in (key, value)]
    return [None if dims is None else ir.Shape(dims) for dims in (result, *kept, scores)]


class _Heads:
    """What is known of queries, keys or values."""

    def __init__(self, node: ir.Node, index: int) -> None:
        value = [*node.inputs, None, None, None][index]
        dims: list[Dim] = [] if value is None or value.shape is None else list(value.shape)
        heads = node.attributes.get_int("kv_num_heads" if index else "q_num_heads", None)
        self.rank = len(dims)
        self.batch: Dim = dims[0] if dims else None
        self.heads: Dim = heads
        self.positions: Dim = None
        self.size: Dim = None
        if self.rank == 4:
            _, self.heads, self.positions, self.size = dims
        elif self.rank == 3:
            self.positions, width = dims[1:]
            self.size = width // heads if isinstance(width, int) and heads else None


def _past(node: ir.Node) -> Dim:
    """Positions of the past."""
    past = node.inputs[4] if len(node.inputs) > 4 else None
    if past is None:
        return 0
    return past.shape[2] if past.shape is not None and len(past.shape) == 4 else None


def _plus(a: Dim, b: Dim) -> Dim:
    if a == 0:
        return b
    return a + b if isinstance(a, int) and isinstance(b, int) else None


def _times(a: Dim, b: Dim) -> Dim:
    return a * b if isinstance(a, int) and isinstance(b, int) else None
