"""Gradients of the attention operators of com.microsoft and of what stands beside them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.chain import through
from onnxtrain.gradients.known import inputs_of, operands, to_first
from onnxtrain.gradients.rules import Grad, forwarded, gradient
from onnxtrain.gradients.vector_jacobian import pulled_back
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS, DataType


@gradient(
    "Attention",
    "CausalConvWithState",
    "EmbedLayerNormalization",
    "GatedRelativePositionBias",
    "LinearAttention",
    "MultiHeadAttention",
    "PackedAttention",
    "PackedMultiHeadAttention",
    "QAttention",
    "QEmbedLayerNormalization",
    "RelativePositionBias",
    "SparseAttention",
    domain=MS,
    all_outputs=True,
)
def recorded(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """Run again and differentiated by torch, so that fused attention has a fused gradient.

    Whole numbers (masks, lengths, ids, quantized values) have no gradient; everything else has one,
    the past among it, and every output passes one on.
    """
    return pulled_back(op, node, dys)


@gradient("GroupQueryAttention", domain=MS, all_outputs=True)
def group_query_attention(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """The same; how many positions there are in all must not be asked for without a past."""
    without_past = inputs_of(node, 4)[3] is None
    return pulled_back(op, node, dys, unread=[6] if without_past else [])


@gradient("LongformerAttention", domain=MS)
def longformer_attention(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Run again and differentiated by torch; the mask is 0 or far below, and has no gradient."""
    grads = pulled_back(op, node, [dy])
    return [*grads[:3], None, *grads[4:]]


@gradient("MRotaryEmbedding", "RotaryEmbedding", domain=MS)
def rotary_embedding(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """A rotation is undone by the opposite one; caches that are trained have a gradient too."""
    _, positions, cos, sin = operands(node)
    turn = getattr(op, node.op_type)
    dx = turn(dy, positions, cos, op.Neg(sin), **forwarded(node), _domain=MS)
    return [dx, *pulled_back(op, node, [dy])[1:]]


@gradient("GemmaRotaryEmbedding", domain=MS, all_outputs=True)
def gemma_rotary_embedding(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """That of its formula, x cos(a) + r sin(a)."""

    def formula(op: Ops, angles: ir.Value, *halves: ir.Value) -> list[ir.Value]:
        double = DataType.DOUBLE in (angles.dtype, halves[0].dtype)
        work = DataType.DOUBLE if double else DataType.FLOAT
        a = op.unsqueeze(op.cast(angles, work), [1])
        cos, sin = op.Cos(a), op.Sin(a)
        q, q_rot, k, k_rot = (op.cast(x, work) for x in halves)
        turned = [op.Add(op.Mul(x, cos), op.Mul(r, sin)) for x, r in ((q, q_rot), (k, k_rot))]
        return [op.cast(y, x) for y, x in zip(turned, halves[::2], strict=True)]

    return through(op, formula, operands(node), [*dys, None][:2])


@gradient("RemovePadding", domain=MS)
def remove_padding(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Tokens put back where they were taken from; padding has a gradient of 0."""
    return to_first(node, op.RestorePadding(dy, node.outputs[1], _domain=MS))


@gradient("RestorePadding", domain=MS)
def restore_padding(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Tokens taken out again."""
    x, places = operands(node)
    tokens = op.slice(op.shape(x), 0, 1)
    rows = op.Slice(op.Reshape(places, op.ints([-1])), op.ints([0]), tokens)
    grad, _ = op.FlattenAndUnpad(dy, rows, _outputs=2, _domain=MS)
    return to_first(node, grad)
