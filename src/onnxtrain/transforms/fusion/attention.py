"""FlashAttention: softmax(q·kᵀ·scale + mask)·v, whose scores are never kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.bindings import same_dim
from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion import scores as reading_scores
from onnxtrain.transforms.fusion.heads import HEADS, shared
from onnxtrain.transforms.fusion.keys import Operand, keys, queries, unscaled
from onnxtrain.transforms.fusion.masks import Settled
from onnxtrain.transforms.fusion.pattern import Match, Pattern, Refusal
from onnxtrain.transforms.fusion.reading import is_last_axis, only_reader, opset_of, rank
from onnxtrain.transforms.fusion.regrouped import alike, apart, divided, regroups, together
from onnxtrain.transforms.fusion.sizes import plane_of
from onnxtrain.transforms.fusion.triangle import Masks
from onnxtrain.transforms.fusion.weights import read_weights
from onnxtrain.types import OWN, DataType

_LAST_AXIS_SINCE = 13
"""From this opset on Softmax is along the last axis unless it says otherwise."""


@dataclasses.dataclass(frozen=True)
class _Attention:
    """The parts of attention.

    Attributes:
        qkv: Queries, keys and values.
        scale: What scores are multiplied by.
        masks: What closes them.
        dropout: Share of the weights that is dropped.
        shape: The shape of the result.
    """

    qkv: Sequence[Operand]
    scale: float
    masks: Settled
    dropout: float
    shape: ir.Shape | None

    def emit(self, op: Ops) -> ir.Value:
        """The operator; matrices without heads get one axis for the time of it."""
        q, k, v = (operand.emit(op) for operand in self.qkv)
        flat = rank(q) == 3
        if flat:
            q, k, v = (op.unsqueeze(value, [0]) for value in (q, k, v))
        else:
            k, v = shared(k, v)
        y = attend(op, (q, k, v), self.scale, self.masks, dropout=self.dropout)
        if flat:
            return op.squeeze(y, [0])
        return y if self.shape is None or len(self.shape) == 4 else together(op, y, self.shape)


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
        *(q, k, v, masks.emit(op, q)),
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
        _refuse_axis(softmax)
        nodes = [*scores.nodes, softmax, *weights.nodes]
        qkv, heads_apart = _operands(nodes, scores.product)
        _refuse_shapes(*qkv)
        _refuse_types(*qkv)
        given = scores.masks
        if heads_apart:
            if any(mask.together is None for mask in given):
                raise Refusal("only a run can tell whether a mask has a matrix for each head")
            nodes += _taken_apart(nodes[-1], qkv)
        else:
            given = tuple(dataclasses.replace(mask, together=False) for mask in given)
        scale = scores.scale * qkv[0].factor * qkv[1].factor
        result = scores.product.outputs[0]
        masks = Settled(given, plane_of(result), result.dtype or DataType.FLOAT, known)
        shape = nodes[-1].outputs[0].shape
        return Match(nodes, _Attention(qkv, scale, masks, weights.dropout, shape).emit)

    return Pattern("FlashAttention", frozenset({"Softmax"}), match)


def _operands(
    nodes: Sequence[ir.Node], product: ir.Node
) -> tuple[tuple[Operand, Operand, Operand], bool]:
    """Queries, keys and values, and whether samples and heads were one axis and are two in these.

    They have to be if scores or weights have both forms, and are if they can be.
    """
    (q, turned), values = product.inputs, nodes[-1].inputs[1]
    assert q is not None and turned is not None and values is not None
    qkv = queries(q), keys(turned), Operand(values)
    both = [node for node in nodes if regroups(node)]
    if not both and rank(q) != 3:
        return qkv, False
    try:
        _refuse_ranks(product, nodes[-1])
        found = unscaled(apart(qkv[0])), unscaled(apart(qkv[1])), apart(qkv[2])
        if not alike([*(one.lead for one in found), *map(divided, both)]):
            raise Refusal("samples and heads may be divided in different ways")
    except Refusal:
        if both:
            raise
        return qkv, False
    return found, True


def _taken_apart(product: ir.Node, qkv: Sequence[Operand]) -> list[ir.Node]:
    """What takes samples and heads of a result apart again, if that is all that reads it."""
    after = only_reader(product.outputs[0], "Reshape")
    if after is None or rank(after.outputs[0]) != 4 or not regroups(after):
        return []
    return [after] if alike([*(one.lead for one in qkv), divided(after)]) else []


def _refuse_ranks(*products: ir.Node) -> None:
    """What has no axis of its own for samples must not be repeated for them."""
    for product in products:
        ranks = [rank(value) for value in product.inputs]
        if ranks[0] != ranks[1]:
            raise Refusal(f"'{product.name}' (MatMul) is of values of ranks {ranks}")


def _refuse_axis(softmax: ir.Node) -> None:
    default = -1 if opset_of(softmax) >= _LAST_AXIS_SINCE else 1
    axis = softmax.attributes.get_int("axis", default)
    if not is_last_axis(softmax.inputs[0], axis):
        raise Refusal(f"Softmax is along axis {axis}, not along the last one")


def _refuse_shapes(q: Operand, k: Operand, v: Operand) -> None:
    """All must be [batch, head, length, size], or [batch, length, size].

    There may be one head of keys and values for all heads of queries.
    """
    ranks = [None if one.sizes is None else len(one.sizes) for one in (q, k, v)]
    if ranks not in ([3] * 3, [4] * 3):
        raise Refusal(f"queries, keys and values have ranks {ranks}, not all 3 or all 4")
    one_for_all = len(q.lead) == 2 and k.lead[HEADS] == v.lead[HEADS] == 1
    axes = [axis for axis in range(len(q.lead)) if axis != HEADS or not one_for_all]
    for other, name in ((k, "keys"), (v, "values")):
        for axis in axes:
            have, want = other.lead[axis], q.lead[axis]
            fixed = isinstance(have, int) or isinstance(want, int)
            if fixed and not same_dim(have, want):
                raise Refusal(f"axis {axis} is {want} for queries, {have} for {name}")


def _refuse_types(*qkv: Operand) -> None:
    types = [operand.value.dtype for operand in qkv]
    if len(set(types)) > 1:
        names = ", ".join("unknown" if one is None else one.name for one in types)
        raise Refusal(f"queries, keys and values are of different types: {names}")
