"""Positions: rotations of features, and biases of scores by how far apart two positions are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.kernels.attention.rotary import angles_at, rotated
from onnxtrain.kernels.lasting import keep
from onnxtrain.kernels.precision import acc, store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.rehearsal import remembered
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
    heads = _heads(input, cos_cache, num_heads, rotary_embedding_dim)
    if position_ids.ndim == 1:
        position_ids = position_ids.unsqueeze(1) + torch.arange(heads.shape[1], device=input.device)
    cos, sin = angles_at(cos_cache, position_ids), angles_at(sin_cache, position_ids)
    y = rotated(heads, cos, sin, bool(interleaved))
    return y.flatten(2) if input.ndim == 3 else y.transpose(1, 2)


def _heads(x: Tensor, cache: Tensor, num_heads: int, rotary_embedding_dim: int) -> Tensor:
    """[batch, position, head, feature], of as many features as there are angles for, or more."""
    size = rotary_embedding_dim or 2 * cache.shape[1]
    if cache.shape[1] * 2 != size:
        raise ValueError(f"the caches have {cache.shape[1]} angles for {size} features")
    if x.ndim == 4:
        return x.transpose(1, 2)
    heads: Tensor = x.unflatten(2, (num_heads or x.shape[2] // size, -1))
    return heads


@kernel("MRotaryEmbedding", domain=MS, T=FLOATS)
def multimodal_rotary_embedding(
    input: Tensor,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    mrope_layout: int = 0,
    mrope_section: Sequence[int],
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Tensor:
    """A RotaryEmbedding in which a token has three positions: in time, in height and in width.

    Sections tell how many angles take each; they follow one another (layout 0) or take turns.
    """
    heads = _heads(input, cos_cache, num_heads, rotary_embedding_dim)
    kinds = _kinds(tuple(mrope_section), bool(mrope_layout), input.device)
    keep(kinds)
    places = position_ids[kinds].movedim(0, -1), torch.arange(len(kinds), device=input.device)
    cos, sin = (widen(cache[places]).unsqueeze(2) for cache in (cos_cache, sin_cache))
    y = rotated(heads, cos, sin, bool(interleaved))
    return y.flatten(2) if input.ndim == 3 else y.transpose(1, 2)


@kernel("GemmaRotaryEmbedding", domain=MS, outputs=2, T=FLOATS, U=FLOATS)
def gemma_rotary_embedding(
    emb: Tensor, q: Tensor, q_rot: Tensor, k: Tensor, k_rot: Tensor
) -> tuple[Tensor, Tensor]:
    """q cos(a) + r sin(a) for queries and for keys; r has their halves swapped, one negated.

    The angles a are [batch, position, feature] for all heads.
    """
    angles = emb.to(torch.promote_types(acc(emb.dtype), acc(q.dtype))).unsqueeze(1)
    cos, sin = torch.cos(angles), torch.sin(angles)
    turned, moved = (widen(x) * cos + widen(rot) * sin for x, rot in ((q, q_rot), (k, k_rot)))
    return store(turned, q), store(moved, k)


@remembered(64)
def _kinds(sections: tuple[int, ...], turns: bool, device: torch.device) -> Tensor:
    """For each angle which of the three positions it takes."""
    found = [kind for kind, count in enumerate(sections) for _ in range(count)]
    if turns:
        found = [0] * len(found)
        for kind in (1, 2):
            for index in range(kind, min(3 * sections[kind], len(found)), 3):
                found[index] = kind
    return torch.tensor(found, device=device)


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
