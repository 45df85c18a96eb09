"""Attention without softmax: a matrix for each head that every position reads and updates."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from onnxtrain.kernels.precision import widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS

GATED, DELTA = ("gated", "gated_delta"), ("delta", "gated_delta")
RULES = ("linear", *GATED, "delta")


@kernel("LinearAttention", since=27, outputs=2, T=FLOATS, S=FLOATS)
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Tensor, Tensor]:
    """S = exp(decay) S + k ⊗ w and y = scale · q S at each position, and the last S.

    w is the value v, or beta (v - k S) for the delta rules.
    """
    _check(update_rule, decay, beta)
    queries, keys, values = (
        widen(x).unflatten(2, (heads, -1))
        for x, heads in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
    )
    groups, size = q_num_heads // kv_num_heads, keys.shape[-1]
    shape = (len(query), kv_num_heads, size, values.shape[-1])
    state = queries.new_zeros(shape) if past_state is None else widen(past_state)
    gates = None if decay is None else widen(decay).exp().unflatten(2, (kv_num_heads, -1))
    rates = None if beta is None else widen(beta)
    rows = []
    for at in range(query.shape[1]):
        k, w = keys[:, at], values[:, at]
        if gates is not None:
            state = state * gates[:, at].unsqueeze(-1)
        if rates is not None:
            w = rates[:, at].unsqueeze(-1) * (w - (k.unsqueeze(-2) @ state).squeeze(-2))
        state = state + k.unsqueeze(-1) * w.unsqueeze(-2)
        q = queries[:, at].unflatten(1, (kv_num_heads, groups))
        rows.append((q @ state).flatten(1))
    y = torch.stack(rows, 1) * (scale or 1 / math.sqrt(size))
    kept = query.dtype if past_state is None else past_state.dtype
    return y.to(query.dtype), state.to(kept, copy=True)


def _check(rule: str, decay: Tensor | None, beta: Tensor | None) -> None:
    if rule not in RULES:
        raise ValueError(f"update_rule is '{rule}', but it must be one of {', '.join(RULES)}")
    for name, given, needed in (("decay", decay, rule in GATED), ("beta", beta, rule in DELTA)):
        if (given is not None) != needed:
            raise ValueError(f"update_rule '{rule}' {'needs' if needed else 'takes no'} {name}")
