"""Batches without padding: tokens taken out and put back, and attention over them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.kernels.attention.scaled_dot import fused
from onnxtrain.kernels.products import of_rows
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.transformer.attend import join_heads, scale_of, unpacked, working
from onnxtrain.kernels.transformer.multi_head import queries_keys_values
from onnxtrain.kernels.transformer.self_attention import projections
from onnxtrain.types import FLOATS, MS


@kernel("RemovePadding", domain=MS, outputs=4, host=["sequence_token_count"], T=FLOATS)
def remove_padding(
    input: Tensor, sequence_token_count: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The first tokens of each sequence; where tokens and then paddings were; sums of lengths."""
    batch, length = input.shape[:2]
    counts = torch.tensor(sequence_token_count, device=input.device).reshape(batch, 1)
    padding = torch.arange(length, device=input.device) >= counts
    order = torch.sort(padding.flatten().to(torch.uint8), stable=True).indices
    tokens = sum(sequence_token_count)
    sums = torch.nn.functional.pad(counts.flatten().cumsum(0), (1, 0))
    longest = input.new_tensor([max(sequence_token_count, default=0)], dtype=torch.int32)
    places = order.to(torch.int32).reshape(batch, length)
    return input.flatten(0, 1)[order[:tokens]], places, sums.to(torch.int32), longest


@kernel("RestorePadding", domain=MS, T=FLOATS)
def restore_padding(input: Tensor, token_offset: Tensor) -> Tensor:
    """Each token where it was, and zeros between them."""
    return unpacked(input, token_offset)


@kernel("PackedAttention", domain=MS, T=FLOATS)
def packed_attention(
    input: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    token_offset: Tensor,
    cumulative_sequence_length: Tensor,
    attention_bias: Tensor | None = None,
    *,
    num_heads: int,
    qkv_hidden_sizes: Sequence[int] | None = None,
    scale: float = 0.0,
) -> Tensor:
    """Attention with its own projections; tokens see those of their own sequence."""
    product = unpacked(of_rows(working(input), working(weights)), token_offset)
    heads = projections(product, bias, num_heads, qkv_hidden_sizes)
    y = _attended(heads, cumulative_sequence_length, attention_bias, scale)
    return _packed(y, token_offset, len(input)).to(input.dtype)


@kernel("PackedMultiHeadAttention", domain=MS, T=FLOATS)
def packed_multi_head_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    bias: Tensor | None,
    token_offset: Tensor,
    cumulative_sequence_length: Tensor,
    attention_bias: Tensor | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float = 0.0,
) -> Tensor:
    """Attention of projected tokens; tokens see those of their own sequence."""
    parts = [None if x is None else unpacked(x, token_offset) for x in (query, key, value)]
    assert parts[0] is not None
    heads = queries_keys_values(parts[0], parts[1], parts[2], bias, num_heads)
    y = _attended(heads, cumulative_sequence_length, attention_bias, scale)
    return _packed(y, token_offset, len(query)).to(query.dtype)


def _attended(heads: Sequence[Tensor], sums: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """[batch, position, head · size]; keys behind the end of their sequence are never seen."""
    query, keys, values = heads
    lengths = sums.diff().reshape(-1, 1, 1, 1)
    allowed = torch.arange(keys.shape[2], device=query.device) < lengths
    factor = scale_of(scale, query.shape[3])
    return join_heads(fused(query, keys, values, allowed, bias, factor, False))


def _packed(y: Tensor, token_offset: Tensor, tokens: int) -> Tensor:
    return y.flatten(0, 1)[token_offset.reshape(-1)[:tokens].to(torch.int64)]
