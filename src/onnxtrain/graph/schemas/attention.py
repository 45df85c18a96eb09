"""Attention that keeps what its gradient needs, and that gradient."""

from __future__ import annotations

from collections.abc import Sequence

from onnxtrain.graph.schemas.declare import Attributes, op, optional
from onnxtrain.graph.schemas.facts import Dim, Facts, Shape
from onnxtrain.graph.schemas.forward import broadcast
from onnxtrain.graph.schemas.infer import at, fixed, of, same_as, typed
from onnxtrain.types import FLOATS, OWN, DataType

MASKS = FLOATS | {DataType.BOOL}
SCORES: Attributes = {"dropout": 0.0, "is_causal": 0, "scale": optional("float")}


def attended(facts: Facts, output: int) -> Shape | None:
    """The queries with the width of the values."""
    queries = per_query(facts, output)
    return None if queries is None else (*queries, at(facts.shape(2), -1))


def per_query(facts: Facts, output: int) -> Shape | None:
    """One number for each query of each head; a single sample, head or query is that of all."""
    q, mask = facts.shape(0), facts.shape(3)
    if q is None or len(q) != 4:
        return None
    unknown = mask is None and facts.type(3) is not None
    masked: Shape = (None,) * 3 if unknown else (1, 1, 1, *(mask or ())[:-1])[-3:]
    shared = [(at(facts.shape(index), 0), at(facts.shape(index), 1)) for index in (1, 2)]
    samples, _, rows = broadcast(q[:3], masked)
    for other, _ in shared:
        (samples,) = broadcast((samples,), (other,))
    return samples, _heads(q[1], [masked[1], *(heads for _, heads in shared)]), rows


def _heads(q: Dim, others: Sequence[Dim]) -> Dim:
    """How many heads there are: keys and values may have fewer than queries."""
    if isinstance(q, int) and q != 1:
        return q
    more = {heads for heads in others if heads not in (1, q)}
    if not more:
        return q
    return more.pop() if q == 1 and len(more) == 1 else None


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
    op(
        "Rotate",
        "X: T, cos: C, sin: C -> Y: T",
        domain=OWN,
        T=FLOATS,
        C=FLOATS,
        inverse=0,
        interleaved=0,
        infer=same_as(0),
    ),
)
