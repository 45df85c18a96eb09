"""Attention: softmax(q·kᵀ·scale + bias)·v, with caches, masks, windows and shared heads."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.precision import acc
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, DataType

RAW, CAPPED, BIASED, PROBABILITIES = range(4)
"""What the fourth output may show."""


@kernel(
    "Attention",
    since=23,
    outputs=4,
    needs=["wanted"],
    view={"k": 1, "v": 2},
    T1=FLOATS,
    T2=FLOATS,
)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    wanted: tuple[bool, ...],
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """y, keys and values with the past before them, and scores or probabilities."""
    packed = q.ndim == 3
    query, keys, values = _heads(q, q_num_heads), _heads(k, kv_num_heads), _heads(v, kv_num_heads)
    past = 0 if past_key is None else past_key.shape[2]
    if past_key is not None and past_value is not None:
        keys = torch.cat([past_key, keys], 2)
        values = torch.cat([past_value, values], 2)
    rules = _Rules(query, keys, past, nonpad_kv_seqlen)
    allowed = rules.allowed(bool(is_causal), left_window_size, right_window_size)
    bias = None
    if attn_mask is not None:
        allowed, bias = _with_mask(attn_mask, allowed, keys.shape[2], acc(q.dtype))
    factor = 1 / math.sqrt(query.shape[3]) if scale is None else scale
    shown = len(wanted) > 3 and wanted[3]
    if shown or softcap or softmax_precision not in (None, DataType.FLOAT):
        how = _Softmax(factor, softcap, softmax_precision, qk_matmul_output_mode)
        y, scores = how(query, keys, values, allowed, bias)
    else:
        plain = rules.is_plain(left_window_size, right_window_size) and attn_mask is None
        y = fused(query, keys, values, allowed, bias, factor, plain and bool(is_causal))
        scores = None
    y = y.transpose(1, 2).flatten(2) if packed else y
    return y.to(q.dtype), keys, values, None if scores is None else scores.to(q.dtype)


def _heads(x: Tensor, heads: int | None) -> Tensor:
    """[batch, head, position, size], from [batch, position, head · size] too."""
    if x.ndim == 4:
        return x
    if not heads:
        raise ValueError("inputs of rank 3 need q_num_heads and kv_num_heads")
    split: Tensor = x.unflatten(2, (heads, -1))
    return split.transpose(1, 2)


class _Rules:
    """Which keys a query may see by its position; position 0 is where the past begins."""

    def __init__(self, query: Tensor, keys: Tensor, past: int, lengths: Tensor | None) -> None:
        self._lengths = None if lengths is None else lengths.reshape(-1, 1, 1, 1)
        self._key = torch.arange(keys.shape[2], device=query.device)
        queries, self._past = query.shape[2], past
        first = past if self._lengths is None else self._lengths - queries
        self._query = torch.arange(queries, device=query.device).unsqueeze(-1) + first

    def is_plain(self, left: int, right: int) -> bool:
        """Whether only causality matters, and queries and keys begin together."""
        return self._lengths is None and self._past == 0 and left < 0 and right < 0

    def allowed(self, causal: bool, left: int, right: int) -> Tensor | None:
        """The pairs that may meet, as truth values that broadcast; None for all of them."""
        ahead = self._key - self._query
        rules = []
        if causal:
            rules.append(ahead <= 0)
        if left >= 0:
            rules.append(ahead >= -left)
        if right >= 0:
            rules.append(ahead <= right)
        if self._lengths is not None:
            rules.append(self._key < self._lengths)
        if not rules:
            return None
        allowed = rules[0]
        for rule in rules[1:]:
            allowed = allowed & rule
        return allowed


def _with_mask(
    mask: Tensor, allowed: Tensor | None, keys: int, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """The pairs that a mask leaves, and what it adds to scores; it is closed where it ends."""
    missing = keys - mask.shape[-1]
    if mask.dtype is torch.bool:
        mask = functional.pad(mask, (0, missing)) if missing > 0 else mask
        return (mask if allowed is None else allowed & mask), None
    bias = mask.to(dtype)
    bias = functional.pad(bias, (0, missing), value=-torch.inf) if missing > 0 else bias
    opened = bias != -torch.inf
    return (opened if allowed is None else allowed & opened), bias


def fused(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    allowed: Tensor | None,
    bias: Tensor | None,
    scale: float,
    causal: bool,
) -> Tensor:
    """Torch's own attention; 16-bit types are summed in float32 on the CPU as well."""
    dtype = acc(query.dtype) if query.device.type == "cpu" else query.dtype
    causal = causal and scale > 0  # torch multiplies the -inf of what lies ahead by it, too
    mask = None if causal or bias is None else bias.to(dtype)
    if not causal and allowed is not None:
        mask = allowed if mask is None else mask.masked_fill(~allowed, -torch.inf)
    if mask is not None:
        mask = mask.reshape(*[1] * (4 - mask.ndim), *mask.shape)
    return functional.scaled_dot_product_attention(
        query.to(dtype),
        keys.to(dtype),
        values.to(dtype),
        mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=query.shape[1] != keys.shape[1],
    )


@dataclasses.dataclass(frozen=True)
class _Softmax:
    """Attention step by step, where the steps matter: scores are shown, capped or rounded."""

    scale: float
    softcap: float
    precision: int | None
    mode: int

    def __call__(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        allowed: Tensor | None,
        bias: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """y, and what the mode shows; a query that may see nothing gets 0."""
        dtype, root = acc(query.dtype), math.sqrt(abs(self.scale))
        groups = query.shape[1] // keys.shape[1]
        wide_keys = keys.to(dtype).repeat_interleave(groups, 1)
        wide_values = values.to(dtype).repeat_interleave(groups, 1)
        wide_query = query.to(dtype) * math.copysign(root, self.scale)
        raw = wide_query @ (wide_keys * root).transpose(2, 3)
        capped = self.softcap * torch.tanh(raw / self.softcap) if self.softcap else raw
        biased = capped if bias is None else capped + bias
        if allowed is not None:
            biased = biased.masked_fill(~allowed, -torch.inf)
        weights = self._probabilities(biased, allowed).to(dtype)
        return weights @ wide_values, (raw, capped, biased, weights)[self.mode]

    def _probabilities(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if self.precision is not None:
            scores = scores.to(to_torch(self.precision))
        weights = torch.softmax(scores, -1)
        if allowed is None:
            return weights
        return weights.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
