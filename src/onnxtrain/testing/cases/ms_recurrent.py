"""Rows of the layers of com.microsoft that carry a state, and of rotations by three positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, integers, normal, only, uniform
from onnxtrain.testing.cases import attention
from onnxtrain.types import MS, DataType

TWO = only(DataType.FLOAT, DataType.DOUBLE)


def _recurred(query: Any, *others: Any, q_num_heads: int, kv_num_heads: int, **options: Any) -> Any:
    """Where keys share queries, each gets a copy of its own."""
    if q_num_heads < kv_num_heads:
        heads = query.reshape(*query.shape[:2], q_num_heads, 1, -1)
        query = heads.expand(-1, -1, -1, kv_num_heads // q_num_heads, -1).flatten(2)
    queries = max(q_num_heads, kv_num_heads)
    return attention._recurred(
        query, *others, q_num_heads=queries, kv_num_heads=kv_num_heads, **options
    )


def _linear(rule: str, *more: Input | None, heads: int = 2, name: str = "", **options: Any) -> Case:
    keys = normal(2, 3, 2 * 4, scale=0.4)
    return Case(
        "LinearAttention",
        [normal(2, 3, heads * 4), keys, normal(2, 3, 2 * 3), *more],
        _recurred,
        {"update_rule": rule, "q_num_heads": heads, "kv_num_heads": 2, **options},
        MS,
        outputs=2,
        dtypes=TWO,
        name=name or rule,
    )


_DECAY, _RATE = uniform(2, 3, 2, low=-1.0), uniform(2, 3, 2)
LINEAR = [
    _linear("linear"),
    _linear("linear", heads=4, name="more-queries"),
    _linear("linear", heads=1, name="fewer-queries"),
    _linear("gated", None, _DECAY, scale=0.5),
    _linear("delta", normal(2, 2, 4, 3), None, _RATE),
    _linear("gated_delta", None, uniform(2, 3, 8, low=-1.0), uniform(2, 3, 1)),
]


def _convolved(
    x: Any,
    weight: Any,
    bias: Any = None,
    past: Any = None,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
) -> tuple[Tensor, Tensor]:
    """A filter with zeros between its taps, over channels that come first."""
    spread = weight.new_zeros(*weight.shape[:2], (weight.shape[2] - 1) * dilation + 1)
    spread[:, :, ::dilation] = weight
    first = [x if not channels_last else x.flatten(2).mT, spread, bias, past]
    if past is not None and channels_last:
        first[3] = past.flatten(2).mT
    found = attention._convolved(*first, activation=activation)
    if not channels_last:
        return found
    y, state = (one.mT.reshape(len(x), -1, *x.shape[2:]) for one in found)
    return y, state


def _conv(*inputs: Input | None, name: str, **options: Any) -> Case:
    return Case("CausalConvWithState", inputs, _convolved, options, MS, outputs=2, dtypes=TWO,
                name=name)  # fmt: skip


CONV = [
    _conv(normal(2, 3, 5), normal(3, 1, 3), name="plain"),
    _conv(normal(2, 3, 4), normal(3, 1, 2), normal(3), normal(2, 3, 2), name="dilated", dilation=2,
          activation="silu"),
    _conv(normal(2, 4, 3), normal(3, 1, 2), normal(3), normal(2, 1, 3), name="last",
          channels_last=1, activation="swish"),
    _conv(normal(1, 4, 2, 2), normal(4, 1, 3), name="last-axes", channels_last=1),
]  # fmt: skip


def _turned(x: Any, positions: Any, cos: Any, sin: Any, *, mrope_section: Any,
            mrope_layout: int = 0, **options: Any) -> Any:  # fmt: skip
    """Each angle looked up at its own position."""
    time, height, width = mrope_section
    kinds = [0] * time + [1] * height + [2] * width
    if mrope_layout:
        kinds = [0] * len(kinds)
        kinds[1 : 3 * height : 3] = [1] * len(kinds[1 : 3 * height : 3])
        kinds[2 : 3 * width : 3] = [2] * len(kinds[2 : 3 * width : 3])
    picked = [
        torch.stack([c[positions[k], i] for i, k in enumerate(kinds)], -1) for c in (cos, sin)
    ]
    heads = options.pop("num_heads", 0) or 1
    return attention._rotated(x, *picked, num_heads=heads, **options)


def _rotary(x: Input, name: str, angles: int = 4, **options: Any) -> Case:
    places = integers(3, 2, 3, high=9)
    caches = [normal(9, angles), normal(9, angles)]
    return Case("MRotaryEmbedding", [x, places, *caches], _turned, options, MS, dtypes=TWO,
                name=name)  # fmt: skip


ROTARY = [
    _rotary(normal(2, 3, 16), "sections", num_heads=2, mrope_section=[2, 1, 1]),
    _rotary(normal(2, 2, 3, 8), "turns", mrope_section=[2, 1, 1], mrope_layout=1),
    _rotary(normal(2, 1, 3, 14), "turns-neighbours", 6, mrope_section=[2, 2, 2], mrope_layout=1,
            interleaved=1, rotary_embedding_dim=12),
]  # fmt: skip

CASES: list[Case] = [*LINEAR, *CONV, *ROTARY]
