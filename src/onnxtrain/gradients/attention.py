"""Gradients of attention and of what stands beside it in transformers."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.known import inputs_of, output_of
from onnxtrain.gradients.rules import Grad, attribute, forwarded, gradient
from onnxtrain.gradients.vector_jacobian import pulled_back
from onnxtrain.graph.builder import Ops
from onnxtrain.types import OWN, DataType


@gradient("Attention", "CausalConvWithState", "LinearAttention", all_outputs=True)
def attention(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """Run again and differentiated by torch, so that fused attention has a fused gradient.

    Every output counts: what is handed on as the past has a gradient, and so do scores that are
    shown. A query that may see nothing has a gradient of 0.
    """
    return pulled_back(op, node, dys)


@gradient("FlashAttention", domain=OWN, all_outputs=True)
def flash_attention(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """All in one operator, which needs the output and the logsumexp of each query."""
    dy, *others = dys
    if dy is None or any(other is not None for other in others):
        return pulled_back(op, node, dys)
    q, k, v, mask = inputs_of(node, 4)
    wide = DataType.DOUBLE if q is not None and q.dtype == DataType.DOUBLE else DataType.FLOAT
    saved = [
        node.outputs[0],
        output_of(node, 1, "_logsumexp", wide),
        output_of(node, 2, "_seed", DataType.INT64),
        output_of(node, 3, "_offset", DataType.INT64),
    ]
    grads: list[Grad] = [
        *op.FlashAttentionGrad(
            dy, q, k, v, mask, *saved, **forwarded(node), _outputs=4, _domain=OWN
        )
    ]
    return grads[: len(node.inputs)]


@gradient("FlashAttentionGrad", domain=OWN, all_outputs=True)
def flash_attention_grad(op: Ops, node: ir.Node, gs: Sequence[Grad]) -> list[Grad]:
    """By torch, through the gradient written as products, which computes y and logsumexp again."""
    return [*pulled_back(op, node, gs)[:5], None, None, None, None]


@gradient("RotaryEmbedding")
def rotary_embedding(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """A rotation is undone by the opposite one; caches that are trained have a gradient too."""
    _, cos, sin, positions = inputs_of(node, 4)
    assert sin is not None
    dx = op.RotaryEmbedding(dy, cos, op.Neg(sin), positions, **forwarded(node))
    return [dx, *pulled_back(op, node, [dy])[1:]]


@gradient("Rotate", domain=OWN)
def rotate(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The transposed rotation, which is the inverse one; angles that are trained get theirs too."""
    _, cos, sin = inputs_of(node, 3)
    given = {**forwarded(node), "inverse": 1 - attribute(node, "inverse", 0)}
    dx = op.Rotate(dy, cos, sin, **given, _domain=OWN)
    return [dx, *pulled_back(op, node, [dy])[1:]]
