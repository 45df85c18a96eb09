"""Embeddings of com.microsoft: quantized tables, positions as angles, words of characters."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import op, optional
from onnxtrain.graph.schemas.facts import Facts, Shape
from onnxtrain.graph.schemas.infer import at, of, same_as, typed
from onnxtrain.graph.schemas.ms_attention import BYTES, INT32, batch_of_ids, embedded
from onnxtrain.types import FLOATS


def vectors(facts: Facts, output: int) -> Shape:
    """[words, filters]."""
    return (at(facts.shape(0), 0), at(facts.shape(1), 0))


OPS = (
    op(
        "GemmaRotaryEmbedding",
        "emb: U, q: T, q_rot: T, k: T, k_rot: T -> output1: T, output2: T",
        T=FLOATS,
        U=FLOATS,
        infer=(same_as(1), same_as(3)),
    ),
    op(
        "QEmbedLayerNormalization",
        "input_ids: T1, segment_ids?: T1, word_embedding_quant: T2, "
        "position_embedding_quant: T2, segment_embedding?: T2, gamma_quant: T2, beta_quant: T2, "
        "mask?: T1, word_embedding_scale: T, position_embedding_scale: T, "
        "segment_embedding_scale?: T, gamma_scale: T, beta_scale: T, "
        "word_embedding_zero_point: T2, position_embedding_zero_point: T2, "
        "segment_embedding_zero_point?: T2, gamma_zero_point: T2, beta_zero_point: T2 -> "
        "layernorm_out: T, mask_index_out: T1",
        T=FLOATS,
        T1=INT32,
        T2=BYTES,
        epsilon=1e-12,
        infer=(typed(of(8), embedded), typed(of(0), batch_of_ids)),
    ),
    op(
        "WordConvEmbedding",
        "Sequence: T, W: T1, B: T1, C: T1 -> Y: T1",
        T=INT32,
        T1=FLOATS,
        char_embedding_size=optional("int"),
        conv_window_size=optional("int"),
        embedding_size=optional("int"),
        infer=typed(of(1), vectors),
    ),
)
