"""Positions: rotations of features, and biases of scores by how far apart two positions are."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from onnxtrain.kernels.attention.rotary import angles_at, rotated
from onnxtrain.kernels.precision import store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.transformer.attend import first_of, unpacked
from onnxtrain.types import FLOATS, MS


@kernel("RotaryEmbedding", domain=MS, T=FLOATS)
def rotary_embedding(
    input: Tensor,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Tensor:
    """(a, b) becomes (a cos - b sin, a sin + b cos) for each pair of features of a head.

    Positions are given for each token, or as the first one of all sequences. The scale is read by
    no implementation, and packed batches only differ in how long they may be.
    """
    size = rotary_embedding_dim or 2 * cos_cache.shape[1]
    if cos_cache.shape[1] * 2 != size:
        raise ValueError(f"the caches have {cos_cache.shape[1]} angles for {size} features")
    if input.ndim == 3:
        count = num_heads or input.shape[2] // size
        heads = input.unflatten(2, (count, -1))
    else:
        heads = input.transpose(1, 2)
    if position_ids.ndim == 1:
        position_ids = position_ids.unsqueeze(1) + torch.arange(heads.shape[1], device=input.device)
    cos, sin = angles_at(cos_cache, position_ids), angles_at(sin_cache, position_ids)
    y = rotated(heads, cos, sin, bool(interleaved))
    return y.flatten(2) if input.ndim == 3 else y.transpose(1, 2)


@kernel("RelativePositionBias", domain=MS, host=["query_length", "key_length"], T=FLOATS)
def relative_position_bias(
    bias_table: Tensor,
    query_length: int | list[int],
    key_length: int | list[int],
    *,
    is_bidirectional: int = 0,
    max_distance: int,
) -> Tensor:
    """y[0, h, q, k] = table[h, bucket(k - q)].

    The table is declared as [bucket, head], but its values lie in memory as [head, bucket].
    """
    buckets, heads = bias_table.shape
    queries, keys = first_of(query_length), first_of(key_length)
    query = torch.arange(queries or 0, device=bias_table.device).unsqueeze(1)
    ahead = torch.arange(keys or 0, device=bias_table.device) - query
    index = _bucket(ahead, buckets, max_distance, bool(is_bidirectional))
    return bias_table.reshape(heads, buckets)[:, index].unsqueeze(0)


def _bucket(ahead: Tensor, buckets: int, far: int, both: bool) -> Tensor:
    """The bucket of a distance: one each up to a half of them, then wider and wider ones."""
    first = torch.zeros_like(ahead)
    if both:
        buckets //= 2
        first = torch.where(ahead > 0, buckets, 0)
        distance = ahead.abs()
    else:
        distance = (-ahead).clamp(min=0)
    near = buckets // 2
    growth = (distance.clamp(min=1).to(torch.float32) / near).log() / math.log(far / near)
    wide = near + (growth * (buckets - near)).to(torch.int64)
    return first + torch.where(distance < near, distance, wide.clamp(max=buckets - 1))


@kernel("GatedRelativePositionBias", domain=MS, T=FLOATS)
def gated_relative_position_bias(
    query_layer: Tensor,
    query_bias: Tensor,
    rel_pos: Tensor,
    weight: Tensor,
    bias: Tensor,
    eco_a: Tensor,
    token_offset: Tensor | None = None,
    *,
    num_heads: int,
) -> Tensor:
    """(u·(r·a - 1) + 2)·rel_pos, with u and r = σ(sums of the halves of (q + b)·W + c)."""
    query = widen(query_layer) + query_bias
    if token_offset is not None:
        query = unpacked(query, token_offset)
    heads = query.unflatten(2, (num_heads, -1)).transpose(1, 2)
    gates = heads @ widen(weight) + bias
    u, r = torch.sigmoid(gates.unflatten(-1, (2, -1)).sum(-1)).chunk(2, -1)
    return store((u * (r * eco_a - 1) + 2) * rel_pos, query_layer)
