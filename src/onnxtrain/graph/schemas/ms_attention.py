"""Operators of com.microsoft that transformers are fused into: attention and embeddings."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import INT64, Attributes, op, optional, required
from onnxtrain.graph.schemas.facts import Dim, Facts, Shape
from onnxtrain.graph.schemas.infer import Dims, at, fixed_shape, of, same_as, typed
from onnxtrain.types import FLOATS, DataType

INT32 = frozenset({DataType.INT32})
BYTES = frozenset({DataType.INT8, DataType.UINT8})
CACHES = FLOATS | BYTES | {DataType.FLOAT8E4M3FN}
SCORES: Attributes = {
    "mask_filter_value": -10000.0,
    "num_heads": required("int"),
    "scale": optional("float"),
}
"""What most of them know about scores."""
PROJECTED: Attributes = {
    **SCORES,
    "do_rotary": 0,
    "past_present_share_buffer": 0,
    "unidirectional": 0,
}


def over(dim: Dim, divisor: int | None) -> Dim:
    """A dimension divided by a number, None where it is not known."""
    return dim // divisor if isinstance(dim, int) and divisor else None


def plus(a: Dim, b: Dim) -> Dim:
    """The sum of two dimensions; a symbol stays itself if nothing is added."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return b if a == 0 else a if b == 0 else None


def sizes(facts: Facts) -> tuple[Dim, Dim, Dim]:
    """Widths of the queries, keys and values that weights project to."""
    listed = facts.integers("qkv_hidden_sizes")
    if len(listed) == 3:
        return listed[0], listed[1], listed[2]
    third = over(at(facts.shape(1), 1), 3)
    return third, third, third


def projected(facts: Facts, output: int) -> Shape | None:
    """The input with the width of the values."""
    x = facts.shape(0)
    return None if x is None else x[:-1] + (sizes(facts)[2],)


def stacked_cache(past: int) -> Dims:
    """[2, batch, head, past + new, size]; a shared buffer keeps its length."""

    def dims(facts: Facts, output: int) -> Shape:
        x, cache = facts.shape(0), facts.shape(past)
        before = at(cache, 3) if facts.type(past) is not None else 0
        shared = facts.integer("past_present_share_buffer")
        length = before if shared else plus(before, at(x, 1))
        heads = facts.integer("num_heads")
        return (2, at(x, 0), heads, length, over(sizes(facts)[1], heads))

    return dims


class MultiHead:
    """Sizes of MultiHeadAttention, from any of the forms of its inputs."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.query, self.key, self.value = (facts.shape(i) for i in range(3))
        self.heads = facts.integer("num_heads")

    def size(self, values: bool = False) -> Dim:
        """Size of a head of keys or of values."""
        for shape in (self.query, self.key):
            if shape is not None and len(shape) == 5:
                return shape[4]
        of = self.value if values else self.key
        if of is not None and len(of) == 4:
            return of[3]
        return over(at(self.value if values else self.query, 2), self.heads)

    def total(self) -> Dim:
        """How many keys there are, those of the past among them."""
        if self.query is not None and len(self.query) == 5:
            return self.after_past(self.query[1])
        if self.key is None:
            return None
        return self.after_past(at(self.key, 2 if len(self.key) == 4 else 1))

    def after_past(self, new: Dim) -> Dim:
        """New positions and those of a cache, unless that is a buffer that stays as it is."""
        before = at(self.facts.shape(6), 2) if self.facts.type(6) is not None else 0
        return before if self.facts.type(8) is not None else plus(before, new)


def multi_head_output(facts: Facts, output: int) -> Shape | None:
    """[batch, query, head · size of values]."""
    found = MultiHead(facts)
    if found.query is None:
        return None
    size = found.size(values=True)
    width = size * found.heads if isinstance(size, int) and found.heads else None
    return (at(found.query, 0), at(found.query, 1), width)


def multi_head_cache(facts: Facts, output: int) -> Shape:
    """[batch, head, key, size]."""
    found = MultiHead(facts)
    return (at(found.query, 0), found.heads, found.total(), found.size(values=output == 2))


def multi_head_scores(facts: Facts, output: int) -> Shape:
    """[batch, head, query, key]; a buffer has keys that are not used."""
    found = MultiHead(facts)
    total = None if facts.type(8) is not None else found.total()
    return (at(found.query, 0), found.heads, at(found.query, 1), total)


def group_size(facts: Facts) -> Dim:
    """Size of a head, from queries alone or with keys and values behind them."""
    heads, shared = facts.integer("num_heads") or 0, facts.integer("kv_num_heads") or 0
    packed = facts.type(1) is None
    return over(at(facts.shape(0), 2), heads + 2 * shared if packed else heads)


def group_output(facts: Facts, output: int) -> Shape | None:
    """[batch, query, head · size]."""
    x, size, heads = facts.shape(0), group_size(facts), facts.integer("num_heads")
    if x is None:
        return None
    return (at(x, 0), at(x, 1), size * heads if isinstance(size, int) and heads else None)


def group_total(facts: Facts) -> Dim:
    """The content of total_sequence_length, or what it must be without a past."""
    if facts.type(3) is None:
        return at(facts.shape(0), 1)
    known = facts.numbers(6)
    return known[0] if known else None


def cache_type(facts: Facts, output: int) -> int:
    """Caches keep their element type; the first ones have that of the queries."""
    return facts.dtype(0) if facts.type(3) is None else facts.dtype(3)


def group_cache(facts: Facts, output: int) -> Shape:
    """[batch, head, the longer of cache and sequence, size]."""
    total = group_total(facts)
    if facts.type(3) is not None:
        room = at(facts.shape(3), 2)
        known = isinstance(room, int) and isinstance(total, int)
        total = max(room, total) if known else None  # type: ignore[type-var]
    return (at(facts.shape(0), 0), facts.integer("kv_num_heads"), total, group_size(facts))


def group_scores(facts: Facts, output: int) -> Shape:
    """[batch, head, query, key]."""
    x = facts.shape(0)
    return (at(x, 0), facts.integer("num_heads"), at(x, 1), group_total(facts))


def embedded(facts: Facts, output: int) -> Shape | None:
    """The ids with the width of the embedding."""
    ids = facts.shape(0)
    return None if ids is None else (*ids, at(facts.shape(2), 1))


def batch_of_ids(facts: Facts, output: int) -> Shape:
    """One number for each sequence."""
    return (at(facts.shape(0), 0),)


def relative(facts: Facts, output: int) -> Shape:
    """[1, head, query, key]."""
    lengths = [facts.numbers(index) for index in (1, 2)]
    query, key = (found[0] if found else None for found in lengths)
    return (1, at(facts.shape(0), 1), query, key)


def gated(facts: Facts, output: int) -> Shape:
    """[batch, head, query, key]; packed tokens say by their places how many sequences there are."""
    batch = facts.shape(6) if facts.type(6) is not None else facts.shape(0)
    positions = facts.shape(2)
    return (at(batch, 0), facts.integer("num_heads"), at(positions, 2), at(positions, 3))


def tokens_out(facts: Facts, output: int) -> Shape:
    """A number of tokens that only a run can tell, each of the input's width."""
    return (None, at(facts.shape(0), 2))


def batch_and_length(facts: Facts, output: int) -> Shape | None:
    """The first two dimensions of the input."""
    x = facts.shape(0)
    return None if x is None else x[:2]


def sums(facts: Facts, output: int) -> Shape:
    """One number more than there are sequences."""
    return (plus(at(facts.shape(0), 0), 1),)


def restored(facts: Facts, output: int) -> Shape | None:
    """The places, each with the width of a token."""
    places, tokens = facts.shape(1), facts.shape(0)
    return None if places is None or tokens is None else places + tokens[1:]


def packed_output(facts: Facts, output: int) -> Shape | None:
    """[token, head · size of values]."""
    query = facts.shape(0)
    if query is None:
        return None
    if len(query) == 4:
        heads, size = query[1], query[3]
        both = isinstance(heads, int) and isinstance(size, int)
        return (query[0], heads * size if both else None)  # type: ignore[operator]
    return (at(query, 0), at(facts.shape(2), 1))


OPS = (
    op(
        "Attention",
        "input: T, weights: T, bias?: T, mask_index?: M, past?: T, attention_bias?: T, "
        "past_sequence_length?: M -> output: T, present?: T",
        T=FLOATS,
        M=INT32,
        attributes=PROJECTED,
        qkv_hidden_sizes=optional("ints"),
        rotary_embedding_dim=0,
        infer=(typed(of(0), projected), typed(of(0), stacked_cache(4))),
    ),
    op(
        "QAttention",
        "input: T1, weight: T2, bias: T3, input_scale: T3, weight_scale: T3, mask_index?: T4, "
        "input_zero_point?: T1, weight_zero_point?: T2, past?: T3 -> output: T3, present?: T3",
        T1=BYTES,
        T2=BYTES,
        T3=FLOATS,
        T4=INT32,
        attributes=PROJECTED,
        infer=(typed(of(2), projected), typed(of(2), stacked_cache(8))),
    ),
    op(
        "MultiHeadAttention",
        "query: T, key?: T, value?: T, bias?: T, key_padding_mask?: M, attention_bias?: T, "
        "past_key?: T, past_value?: T, past_sequence_length?: M, cache_indirection?: M -> "
        "output: T, present_key?: T, present_value?: T, qk?: T",
        T=FLOATS,
        M=INT32,
        attributes=SCORES,
        unidirectional=0,
        infer=(
            typed(of(0), multi_head_output),
            typed(of(0), multi_head_cache),
            typed(of(0), multi_head_cache),
            typed(of(0), multi_head_scores),
        ),
    ),
    op(
        "GroupQueryAttention",
        "query: T, key?: T, value?: T, past_key?: T_CACHE, past_value?: T_CACHE, seqlens_k: M, "
        "total_sequence_length: M, cos_cache?: T, sin_cache?: T, position_ids?: int64, "
        "attention_bias?: T, head_sink?: T, k_scale?: float, v_scale?: float, q_norm_weight?: T, "
        "k_norm_weight?: T -> "
        "output: T, present_key?: T_CACHE, present_value?: T_CACHE, output_qk?: T",
        T=FLOATS,
        T_CACHE=CACHES,
        M=INT32,
        causal=1,
        do_rotary=0,
        k_quant_type="NONE",
        kv_cache_bit_width=0,
        kv_num_heads=required("int"),
        local_window_size=-1,
        num_heads=required("int"),
        qk_norm_epsilon=1e-6,
        qk_output=0,
        rotary_interleaved=0,
        scale=optional("float"),
        sliding_window_cache=0,
        smooth_softmax=-1,
        softcap=0.0,
        v_quant_type="NONE",
        infer=(
            typed(of(0), group_output),
            typed(cache_type, group_cache),
            typed(cache_type, group_cache),
            typed(of(0), group_scores),
        ),
    ),
    op(
        "PackedAttention",
        "input: T, weights: T, bias?: T, token_offset: M, cumulative_sequence_length: M, "
        "attention_bias?: T -> output: T",
        T=FLOATS,
        M=INT32,
        num_heads=required("int"),
        qkv_hidden_sizes=optional("ints"),
        scale=optional("float"),
        infer=typed(of(0), projected),
    ),
    op(
        "PackedMultiHeadAttention",
        "query: T, key?: T, value?: T, bias?: T, token_offset: M, cumulative_sequence_length: M, "
        "attention_bias?: T -> output: T",
        T=FLOATS,
        M=INT32,
        attributes=SCORES,
        infer=typed(of(0), packed_output),
    ),
    op(
        "RemovePadding",
        "input: T, sequence_token_count: M -> "
        "output: T, token_offset: M, cumulated_seq_len: M, max_seq_len: M",
        T=FLOATS,
        M=INT32,
        infer=(
            typed(of(0), tokens_out),
            typed(of(1), batch_and_length),
            typed(of(1), sums),
            typed(of(1), fixed_shape(1)),
        ),
    ),
    op(
        "RestorePadding",
        "input: T, token_offset: M -> output: T",
        T=FLOATS,
        M=INT32,
        infer=typed(of(0), restored),
    ),
    op(
        "RotaryEmbedding",
        "input: T, position_ids: M, cos_cache: T, sin_cache: T -> output: T",
        T=FLOATS,
        M=INT64,
        interleaved=0,
        is_packed_batching=0,
        num_heads=0,
        rotary_embedding_dim=0,
        scale=1.0,
        infer=same_as(0),
    ),
    op(
        "EmbedLayerNormalization",
        "input_ids: T1, segment_ids?: T1, word_embedding: T, position_embedding: T, "
        "segment_embedding?: T, gamma: T, beta: T, mask?: T1, position_ids?: T1 -> "
        "output: T, mask_index?: T1, embedding_sum?: T",
        T=FLOATS,
        T1=INT32,
        epsilon=1e-12,
        mask_index_type=0,
        infer=(typed(of(2), embedded), typed(of(0), batch_of_ids), typed(of(2), embedded)),
    ),
    op(
        "RelativePositionBias",
        "bias_table: T, query_length: U, key_length: U -> output: T",
        T=FLOATS,
        U=INT64,
        is_bidirectional=0,
        max_distance=required("int"),
        infer=typed(of(0), relative),
    ),
    op(
        "GatedRelativePositionBias",
        "query_layer: T, query_bias: T, rel_pos: T, weight: T, bias: T, eco_a: T, "
        "token_offset?: M -> output: T",
        T=FLOATS,
        M=INT32,
        num_heads=required("int"),
        infer=typed(of(0), gated),
    ),
)
