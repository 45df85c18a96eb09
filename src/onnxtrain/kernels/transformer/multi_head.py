"""Attention of queries, keys and values that were projected before."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.precision import acc
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.transformer.attend import (
    Padding,
    added,
    appended,
    attend,
    first_of,
    join_heads,
    scale_of,
    seen,
    split_heads,
    working,
)
from onnxtrain.types import FLOATS, MS


@kernel(
    "MultiHeadAttention",
    domain=MS,
    outputs=4,
    host=["past_sequence_length"],
    needs=["wanted"],
    T=FLOATS,
)
def multi_head_attention(
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    past_sequence_length: int | list[int] | None = None,
    cache_indirection: Tensor | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float = 0.0,
    unidirectional: int = 0,
    wanted: tuple[bool, ...],
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """y, keys and values with the past before them, and scores as they go into the softmax."""
    if cache_indirection is not None:
        raise ValueError(
            "cache_indirection is not supported: beams must be reordered in past_key and past_value"
        )
    q, k, v = queries_keys_values(query, key, value, bias, num_heads)
    used = first_of(past_sequence_length)
    before = used if used is not None else 0 if past_key is None else past_key.shape[2]
    keys, next_keys = appended(past_key, k, used)
    values, next_values = appended(past_value, v, used)
    added_scores = attention_bias
    if key_padding_mask is not None:
        shape = Padding(len(q), q.shape[2], keys.shape[2])
        added_scores = added(shape.bias(key_padding_mask, mask_filter_value, query), attention_bias)
    factor = scale_of(scale, q.shape[3])
    # the last query sees all keys, of which there may be more than queries without a past, too
    position = max(before, keys.shape[2] - q.shape[2])
    causal_from = position if unidirectional else None
    keep = [index < len(wanted) and wanted[index] for index in range(4)]
    y = attend(q, keys, values, added_scores, factor, causal_from)
    return (
        join_heads(y).to(query.dtype),
        next_keys.to(query.dtype) if keep[1] else None,
        next_values.to(query.dtype) if keep[2] else None,
        _scores(q, keys, added_scores, factor, causal_from).to(query.dtype) if keep[3] else None,
    )


def queries_keys_values(
    query: Tensor, key: Tensor | None, value: Tensor | None, bias: Tensor | None, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as [batch, head, position, size], with their biases added.

    They come apart; with keys and values packed together; all packed together; or with keys and
    values that are a cache, which has its biases already.
    """
    if query.ndim == 5:
        parts = [working(x).transpose(1, 2) for x in query.unbind(3)]
    elif key is None:
        raise ValueError("a query of rank 3 needs keys (packed queries, keys and values: rank 5)")
    elif key.ndim == 5:
        packed = [working(x).transpose(1, 2) for x in key.unbind(3)]
        parts = [split_heads(working(query), heads), *packed]
    elif value is None:
        raise ValueError(f"keys of rank {key.ndim} need values (packed keys and values: rank 5)")
    elif key.ndim == 4:
        parts = [split_heads(working(query), heads), working(key), working(value)]
    else:
        parts = [split_heads(working(x), heads) for x in (query, key, value)]
    if bias is not None:
        parts = _biased(parts, bias, only_query=key is not None and key.ndim == 4)
    return parts[0], parts[1], parts[2]


def _biased(parts: list[Tensor], bias: Tensor, only_query: bool) -> list[Tensor]:
    sizes = [x.shape[1] * x.shape[3] for x in parts]
    if sum(sizes) != bias.shape[0]:
        raise ValueError(f"a bias with {bias.shape[0]} values does not fit to sizes {sizes}")
    shifts = working(bias).split(sizes)
    pairs = zip(parts, shifts, strict=True)
    return [
        x if only_query and index else x + shift.reshape(1, x.shape[1], 1, x.shape[3])
        for index, (x, shift) in enumerate(pairs)
    ]


def _scores(
    q: Tensor, keys: Tensor, bias: Tensor | None, scale: float, causal_from: int | None
) -> Tensor:
    """q·kᵀ·scale + bias; for pairs that may not meet, the lowest number there is."""
    scores = (q.to(acc(q.dtype)) * scale) @ keys.to(acc(q.dtype)).transpose(2, 3)
    scores = scores if bias is None else scores + bias
    if causal_from is None:
        return scores
    allowed = seen(q.shape[2], keys.shape[2], causal_from, q)
    return scores.masked_fill(~allowed, torch.finfo(q.dtype).min)
