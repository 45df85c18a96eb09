"""Gradients of attention and of what stands beside it in transformers."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.known import inputs_of
from onnxtrain.gradients.rules import Grad, forwarded, gradient
from onnxtrain.gradients.vector_jacobian import pulled_back
from onnxtrain.graph.builder import Ops


@gradient("Attention", "CausalConvWithState", "LinearAttention", all_outputs=True)
def attention(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """Run again and differentiated by torch, so that fused attention has a fused gradient.

    Every output counts: what is handed on as the past has a gradient, and so do scores that are
    shown. A query that may see nothing has a gradient of 0.
    """
    return pulled_back(op, node, dys)


@gradient("RotaryEmbedding")
def rotary_embedding(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """A rotation is undone by the opposite one; caches that are trained have a gradient too."""
    _, cos, sin, positions = inputs_of(node, 4)
    assert sin is not None
    dx = op.RotaryEmbedding(dy, cos, op.Neg(sin), positions, **forwarded(node))
    return [dx, *pulled_back(op, node, [dy])[1:]]
