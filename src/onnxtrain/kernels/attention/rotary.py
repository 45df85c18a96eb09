"""Positions as rotations of pairs of features."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.precision import store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS


@kernel("RotaryEmbedding", since=23, T=FLOATS)
def rotary_embedding(
    x: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    """(a, b) becomes (a cos - b sin, a sin + b cos) for each pair of features of a head.

    Pairs are neighbours (interleaved) or the first and the second half; features beyond the
    rotary dimension stay.
    """
    if x.ndim == 3 and not num_heads:
        raise ValueError("an input of rank 3 needs num_heads")
    heads = x.unflatten(2, (num_heads, -1)) if x.ndim == 3 else x.transpose(1, 2)
    size = rotary_embedding_dim or heads.shape[-1]
    cos, sin = (angles_at(cache, position_ids) for cache in (cos_cache, sin_cache))
    if cos.shape[-1] * 2 != size or sin.shape[-1] * 2 != size:
        raise ValueError(
            f"the caches have {cos.shape[-1]} and {sin.shape[-1]} angles, "
            f"but {size} features need {size // 2}"
        )
    y = rotated(heads, cos, sin, bool(interleaved))
    return y.flatten(2) if x.ndim == 3 else y.transpose(1, 2)


def rotated(heads: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """The pairs of features turned by angles that broadcast; features without an angle stay."""
    size = 2 * cos.shape[-1]
    turned, kept = widen(heads[..., :size]), heads[..., size:]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, -1)
    parts = [first * cos - second * sin, first * sin + second * cos]
    joined = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat([store(joined, heads), kept], -1)


def angles_at(cache: Tensor, position_ids: Tensor | None) -> Tensor:
    """Values of each position, for all heads: [batch, position, 1, angle]."""
    return widen(cache if position_ids is None else cache[position_ids]).unsqueeze(2)
