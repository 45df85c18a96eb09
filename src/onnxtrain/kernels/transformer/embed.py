"""The first layer of BERT: sums of embeddings, normalized, also from quantized tables."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.nn.layer_norm import normalize
from onnxtrain.kernels.precision import widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS


@kernel("EmbedLayerNormalization", domain=MS, outputs=3, T=FLOATS)
def embed_layer_normalization(
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNormalization of s = word + position + segment, how many ones a mask has, and s."""
    if position_ids is None:
        position = position_embedding[: input_ids.shape[1]]
    else:
        position = position_embedding[position_ids]
    total = widen(word_embedding[input_ids]) + position
    if segment_ids is not None and segment_embedding is not None:
        total = total + segment_embedding[segment_ids]
    y, _, _ = normalize(total, gamma, beta, -1, epsilon)
    ones = torch.zeros_like(input_ids) if mask is None else (mask == 1)
    lengths = ones.sum(1).to(torch.int32)
    return y.to(word_embedding.dtype), lengths, total.to(word_embedding.dtype)


@kernel("QEmbedLayerNormalization", domain=MS, outputs=2, T=FLOATS)
def quantized_embed_layer_normalization(
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None,
    word_scale: Tensor,
    position_scale: Tensor,
    segment_scale: Tensor | None,
    gamma_scale: Tensor,
    beta_scale: Tensor,
    word_zero: Tensor,
    position_zero: Tensor,
    segment_zero: Tensor | None,
    gamma_zero: Tensor,
    beta_zero: Tensor,
    *,
    epsilon: float = 1e-12,
) -> tuple[Tensor, Tensor]:
    """EmbedLayerNormalization of tables, γ and β that are (q - zero)·scale each."""
    segments = None
    if segment_embedding is not None and segment_scale is not None:
        segments = _dequantized(segment_embedding, segment_scale, segment_zero)
    y, lengths, _ = embed_layer_normalization(
        input_ids,
        segment_ids,
        _dequantized(word_embedding, word_scale, word_zero),
        _dequantized(position_embedding, position_scale, position_zero),
        segments,
        _dequantized(gamma, gamma_scale, gamma_zero),
        _dequantized(beta, beta_scale, beta_zero),
        mask,
        epsilon=epsilon,
    )
    return y, lengths


def _dequantized(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    steps = x.to(torch.int32)
    return (steps if zero is None else steps - zero.to(torch.int32)) * scale
