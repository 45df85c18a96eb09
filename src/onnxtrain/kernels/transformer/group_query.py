"""Attention with fewer heads of keys and values than of queries, and a cache of them."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from onnxtrain.kernels.attention.rotary import angles_at, rotated
from onnxtrain.kernels.attention.scaled_dot import fused
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.transformer.attend import (
    Steps,
    first_of,
    join_heads,
    root_mean_square,
    scale_of,
)
from onnxtrain.types import FLOATS, MS

BEFORE, AFTER = 1, 2
"""Which scores the fourth output shows: those before or after the softmax."""


@kernel(
    "GroupQueryAttention",
    domain=MS,
    outputs=4,
    host=["total_sequence_length"],
    T=FLOATS,
    T_CACHE=FLOATS,
)
def group_query_attention(
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    seqlens_k: Tensor | None = None,
    total_sequence_length: int | list[int] | None = None,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    position_ids: Tensor | None = None,
    attention_bias: Tensor | None = None,
    head_sink: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    q_norm_weight: Tensor | None = None,
    k_norm_weight: Tensor | None = None,
    *,
    causal: int = 1,
    do_rotary: int = 0,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    qk_norm_epsilon: float = 1e-6,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    sliding_window_cache: int = 0,
    smooth_softmax: int = -1,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """y, the caches with the new keys and values, and scores before or after the softmax.

    Each sequence has its own length (``seqlens_k`` is one less); a query sees the keys up to its
    own position, or the last ``local_window_size`` of them.
    """
    _refuse(sliding_window_cache, k_quant_type, v_quant_type)
    assert seqlens_k is not None
    q, k, v = _heads(query, key, value, num_heads, kv_num_heads)
    if q_norm_weight is not None and k_norm_weight is not None:
        q = root_mean_square(q, q_norm_weight, qk_norm_epsilon)
        k = root_mean_square(k, k_norm_weight, qk_norm_epsilon)
    total = first_of(total_sequence_length)
    places = _places(seqlens_k, query.shape[1], total, past_key)
    if do_rotary:
        assert cos_cache is not None and sin_cache is not None
        at = places.positions(position_ids)
        cos, sin = angles_at(cos_cache, at), angles_at(sin_cache, at)
        q, k = (rotated(x, cos, sin, bool(rotary_interleaved)) for x in (q, k))
    next_keys = places.cached(past_key, k.transpose(1, 2))
    next_values = places.cached(past_value, v.transpose(1, 2))
    # torch's fused attention with a mask takes as many heads of keys as of queries
    keys, values = (
        x[:, :, : places.total].repeat_interleave(num_heads // kv_num_heads, 1)
        for x in (next_keys, next_values)
    )
    if head_sink is None and smooth_softmax == 1:
        head_sink = query.new_zeros(num_heads)
    how = Steps(scale_of(scale, q.shape[3]), softcap, head_sink)
    allowed = places.allowed(bool(causal), local_window_size)
    heads = q.transpose(1, 2), keys, values
    y, scores = _attended(heads, allowed, attention_bias, how, qk_output)
    return (
        join_heads(y).to(query.dtype),
        next_keys if past_key is None else next_keys.to(past_key.dtype),
        next_values if past_value is None else next_values.to(past_value.dtype),
        None if scores is None else scores.to(query.dtype),
    )


def _refuse(sliding: int, *quantized: str) -> None:
    if sliding:
        raise ValueError(
            "sliding_window_cache is not supported: give a cache for the whole sequence"
        )
    if any(name != "NONE" for name in quantized):
        raise ValueError("quantized caches are not supported: keep keys and values as they are")


def _attended(
    heads: tuple[Tensor, Tensor, Tensor],
    allowed: Tensor,
    bias: Tensor | None,
    how: Steps,
    shown: int,
) -> tuple[Tensor, Tensor | None]:
    """y, and the scores (0 for pairs that may not meet) or weights that are to be shown."""
    if shown not in (BEFORE, AFTER) and not how.softcap and how.sink is None:
        return fused(*heads, allowed, bias, how.scale, False), None
    y, scores, weights = how(*heads, allowed, bias)
    return y, {BEFORE: scores.masked_fill(~allowed, 0), AFTER: weights}.get(shown)


def _heads(
    query: Tensor, key: Tensor | None, value: Tensor | None, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as [batch, position, head, size]."""
    if key is None or value is None:
        size = query.shape[2] // (heads + 2 * kv_heads)
        query, key, value = query.split([heads * size, kv_heads * size, kv_heads * size], 2)
    parts = ((query, heads), (key, kv_heads), (value, kv_heads))
    q, k, v = (x.unflatten(2, (count, -1)) for x, count in parts)
    return q, k, v


def _places(lengths: Tensor, queries: int, total: int | None, past: Tensor | None) -> _Places:
    """Where the new positions of each sequence go.

    A call for as many positions as there are in all begins at 0: short sequences have their padding
    at the end.
    """
    room = 0 if past is None else past.shape[2]
    total = queries if total is None and past is None else total
    if total is None or (past is None and total != queries):
        raise ValueError(
            f"total_sequence_length is {total}, but without a past it must be {queries}"
        )
    ends = lengths.reshape(-1).to(torch.int64) + 1
    starts = torch.zeros_like(ends) if total == queries else ends - queries
    return _Places(starts, ends, queries, total, room)


@dataclasses.dataclass(frozen=True)
class _Places:
    """Positions of new keys, one row for each sequence.

    Attributes:
        starts: The first new position.
        ends: The position behind the last one.
        queries: How many new positions there are.
        total: Most positions that a sequence has.
        room: Positions in the cache that came in.
    """

    starts: Tensor
    ends: Tensor
    queries: int
    total: int
    room: int

    def positions(self, given: Tensor | None = None) -> Tensor:
        """[batch, query]; of those given, a call from the start on reads only the first."""
        if given is not None and self.total != self.queries:
            return given
        first = self.starts.unsqueeze(1) if given is None else given[:1, :1]
        return first + torch.arange(self.queries, device=self.starts.device)

    def cached(self, past: Tensor | None, new: Tensor) -> Tensor:
        """Old keys before the start, new ones from there on, 0 behind them."""
        if past is None:
            return new.clone(memory_format=torch.contiguous_format)
        joined = torch.cat([past.to(new.dtype), new], 2)
        at = torch.arange(max(self.room, self.total), device=new.device)
        place = at - self.starts.unsqueeze(1)
        index = torch.where(place < 0, at, place + self.room).clamp(max=joined.shape[2] - 1)
        shape = (*joined.shape[:2], len(at), joined.shape[3])
        found = joined.gather(2, index[:, None, :, None].expand(shape))
        return found.masked_fill((place >= self.queries)[:, None, :, None], 0)

    def allowed(self, causal: bool, window: int) -> Tensor:
        """Which pairs may meet: [batch, 1, query, key]."""
        key = torch.arange(self.total, device=self.starts.device)
        allowed = (key < self.ends.unsqueeze(1))[:, None, None]
        if not causal:
            return allowed
        query = self.positions()[:, None, :, None]
        allowed = allowed & (key <= query)
        return allowed & (key > query - window) if window > 0 else allowed
