"""Layers of com.microsoft that carry a state: linear attention and causal convolution."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import INT64, op, required
from onnxtrain.graph.schemas.facts import Facts, Shape
from onnxtrain.graph.schemas.infer import Elem, at, of, same_as, times, typed
from onnxtrain.graph.schemas.ms_attention import over
from onnxtrain.types import FLOATS

_STATE = 3


def _heads(facts: Facts) -> tuple[int, int]:
    return facts.integer("q_num_heads") or 1, facts.integer("kv_num_heads") or 1


def _read(facts: Facts, output: int) -> Shape | None:
    """What each query, or each key if there are more of them, reads."""
    query, value = facts.shape(0), facts.shape(2)
    queries, keys = _heads(facts)
    return (at(query, 0), at(query, 1), times(over(at(value, 2), keys), max(queries, keys)))


def _matrices(facts: Facts, output: int) -> Shape | None:
    keys = _heads(facts)[1]
    sizes = (over(at(facts.shape(index), 2), keys) for index in (1, 2))
    return (at(facts.shape(0), 0), keys, *sizes)


def _kept(facts: Facts, output: int) -> int:
    """States keep the type that they come with."""
    past: Elem = of(_STATE)
    return past(facts, output) or facts.dtype(0)


def _carried(facts: Facts, output: int) -> Shape | None:
    """The shape of the input with as many positions as the taps reach back."""
    x, taps = facts.shape(0), at(facts.shape(1), 2)
    if x is None or len(x) < 3:
        return None
    reach = (taps - 1) * (facts.integer("dilation") or 1) if isinstance(taps, int) else None
    axis = 1 if facts.integer("channels_last") else 2
    return (*x[:axis], reach, *x[axis + 1 :])


OPS = (
    op(
        "LinearAttention",
        "query: T, key: T, value: T, past_state?: S, decay?: T, beta?: T -> "
        "output: T, present_state?: S",
        T=FLOATS,
        S=FLOATS,
        chunk_size=64,
        kv_num_heads=required("int"),
        q_num_heads=required("int"),
        scale=0.0,
        state_window=0,
        update_rule="gated_delta",
        infer=(typed(of(0), _read), typed(_kept, _matrices)),
    ),
    op(
        "CausalConvWithState",
        "input: T, weight: T, bias?: T, past_state?: T -> output: T, present_state?: T",
        T=FLOATS,
        activation="none",
        channels_last=0,
        dilation=1,
        ndim=1,
        state_window=0,
        infer=(same_as(0), typed(of(0), _carried)),
    ),
    op(
        "MRotaryEmbedding",
        "input: T, position_ids: M, cos_cache: T, sin_cache: T -> output: T",
        T=FLOATS,
        M=INT64,
        interleaved=0,
        is_packed_batching=0,
        mrope_layout=0,
        mrope_section=required("ints"),
        num_heads=0,
        rotary_embedding_dim=0,
        scale=1.0,
        infer=same_as(0),
    ),
)
