"""FlashAttention: softmax(q·kᵀ·scale + mask)·v, whose scores are never kept."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.bindings import same_dim
from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion import scores as reading_scores
from onnxtrain.transforms.fusion.heads import shared
from onnxtrain.transforms.fusion.keys import Operand, keys, queries
from onnxtrain.transforms.fusion.masks import Settled
from onnxtrain.transforms.fusion.pattern import Match, Pattern, Refusal
from onnxtrain.transforms.fusion.reading import is_last_axis, opset_of, rank
from onnxtrain.transforms.fusion.sizes import plane_of
from onnxtrain.transforms.fusion.triangle import Masks
from onnxtrain.transforms.fusion.weights import Weights, read_weights
from onnxtrain.types import OWN, DataType

_LAST_AXIS_SINCE = 13
"""From this opset on Softmax is along the last axis unless it says otherwise."""


@dataclasses.dataclass(frozen=True)
class _Attention:
    """The parts of attention."""

    q: Operand
    k: Operand
    weights: Weights
    scale: float
    masks: Settled

    def emit(self, op: Ops) -> ir.Value:
        """The operator; matrices without heads get one axis for the time of it."""
        q, k, v = self.q.emit(op), self.k.emit(op), self.weights.values
        flat = rank(q) == 3
        if flat:
            q, k, v = (op.unsqueeze(value, [0]) for value in (q, k, v))
        else:
            k, v = shared(k, v)
        y = attend(op, (q, k, v), self.scale, self.masks, dropout=self.weights.dropout)
        return op.squeeze(y, [0]) if flat else y


def attend(
    op: Ops,
    qkv: tuple[ir.Value, ir.Value, ir.Value],
    scale: float,
    masks: Settled,
    *,
    dropout: float = 0.0,
    is_causal: bool = False,
) -> ir.Value:
    """The operator itself; its scale is a float32, so that doubles are scaled before."""
    q, k, v = masks.heard(op, qkv[0]), *qkv[1:]
    if q.dtype == DataType.DOUBLE and scale != float(np.float32(scale)):
        q, scale = op.Mul(q, op.scalar(scale, q)), 1.0
    return op.FlashAttention(
        *(q, k, v, masks.emit(op)),
        dropout=dropout,
        is_causal=int(is_causal or masks.is_causal),
        scale=scale,
        _domain=OWN,
    )


def matching(known: Masks) -> Pattern:
    """The pattern, for graphs of whose masks something is known."""

    def match(softmax: ir.Node) -> Match | None:
        weights = read_weights(softmax)
        scores = None if weights is None else reading_scores.read(softmax.inputs[0])
        if weights is None or scores is None or not reading_scores.is_attention(scores.product):
            return None
        q, turned = scores.product.inputs
        assert q is not None and turned is not None
        _refuse_axis(softmax)
        _refuse_shapes(q, turned, weights.values)
        found_q, found_k = queries(q), keys(turned)
        scale = scores.scale * found_q.factor * found_k.factor
        result = scores.product.outputs[0]
        masks = Settled(scores.masks, plane_of(result), result.dtype or DataType.FLOAT, known)
        attention = _Attention(found_q, found_k, weights, scale, masks)
        return Match((*scores.nodes, softmax, *weights.nodes), attention.emit)

    return Pattern("FlashAttention", frozenset({"Softmax"}), match)


def _refuse_axis(softmax: ir.Node) -> None:
    default = -1 if opset_of(softmax) >= _LAST_AXIS_SINCE else 1
    axis = softmax.attributes.get_int("axis", default)
    if not is_last_axis(softmax.inputs[0], axis):
        raise Refusal(f"Softmax is along axis {axis}, not along the last one")


def _refuse_shapes(q: ir.Value, turned: ir.Value, v: ir.Value) -> None:
    """All must be [batch, head, length, size], or [batch, length, size]."""
    ranks = [rank(value) for value in (q, turned, v)]
    if ranks not in ([3] * 3, [4] * 3):
        raise Refusal(f"queries, keys and values have ranks {ranks}, not all 3 or all 4")
    for other, name in ((turned, "keys"), (v, "values")):
        assert q.shape is not None and other.shape is not None
        for axis in range(len(q.shape) - 2):
            have, want = other.shape[axis], q.shape[axis]
            fixed = isinstance(have, int) or isinstance(want, int)
            if fixed and not same_dim(have, want):
                raise Refusal(f"axis {axis} is {want} for queries, {have} for {name}")
