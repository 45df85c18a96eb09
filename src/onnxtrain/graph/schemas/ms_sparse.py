"""Attention of com.microsoft among blocks of positions, and within windows."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import op, optional, required
from onnxtrain.graph.schemas.infer import of, same_as, typed
from onnxtrain.graph.schemas.ms_attention import INT32, group_output
from onnxtrain.types import FLOATS

OPS = (
    op(
        "LongformerAttention",
        "input: T, weight: T, bias: T, mask: T, global_weight: T, global_bias: T, global: G -> "
        "output: T",
        T=FLOATS,
        G=INT32,
        num_heads=required("int"),
        window=required("int"),
        infer=same_as(0),
    ),
    op(
        "SparseAttention",
        "query: T, key?: T, value?: T, past_key: T, past_value: T, block_row_indices: M, "
        "block_col_indices: M, total_sequence_length: M, key_total_sequence_lengths: M, "
        "cos_cache?: T, sin_cache?: T -> output: T, present_key: T, present_value: T",
        T=FLOATS,
        M=INT32,
        do_rotary=0,
        kv_num_heads=required("int"),
        num_heads=required("int"),
        rotary_interleaved=0,
        scale=optional("float"),
        sparse_block_size=required("int"),
        infer=(typed(of(0), group_output), same_as(3), same_as(4)),
    ),
)
