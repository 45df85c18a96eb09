"""Attention that keeps what its gradient needs, and that gradient."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import Attributes, op, optional
from onnxtrain.graph.schemas.facts import Facts, Shape
from onnxtrain.graph.schemas.infer import at, fixed, of, same_as, typed
from onnxtrain.types import FLOATS, OWN, DataType

MASKS = FLOATS | {DataType.BOOL}
SCORES: Attributes = {"dropout": 0.0, "is_causal": 0, "scale": optional("float")}


def attended(facts: Facts, output: int) -> Shape | None:
    """The queries with the width of the values."""
    q = facts.shape(0)
    return None if q is None else q[:-1] + (at(facts.shape(2), -1),)


def per_query(facts: Facts, output: int) -> Shape | None:
    """One number for each query of each head."""
    q = facts.shape(0)
    return None if q is None else q[:-1]


def sums(facts: Facts, output: int) -> int:
    """Scores are summed in float32, or in double."""
    wide = facts.dtype(0) == DataType.DOUBLE
    return int(DataType.DOUBLE if wide else DataType.FLOAT)


OPS = (
    op(
        "FlashAttention",
        "q: T, k: T, v: T, mask?: M -> y: T, logsumexp?: S, seed?: int64, offset?: int64",
        domain=OWN,
        T=FLOATS,
        M=MASKS,
        S=FLOATS,
        attributes=SCORES,
        infer=(
            typed(of(0), attended),
            typed(sums, per_query),
            typed(fixed(DataType.INT64), lambda facts, output: None),
            typed(fixed(DataType.INT64), lambda facts, output: None),
        ),
    ),
    op(
        "FlashAttentionGrad",
        "dy: T, q: T, k: T, v: T, mask?: M, y: T, logsumexp: S, seed: int64, offset: int64"
        " -> dq?: T, dk?: T, dv?: T, dmask?: M",
        domain=OWN,
        T=FLOATS,
        M=MASKS,
        S=FLOATS,
        attributes=SCORES,
        infer=(same_as(1), same_as(2), same_as(3), same_as(4)),
    ),
)
