"""Rows of the attention operators.

ONNX's reference is the truth for values, torch functions that autograd can go back through are it
for gradients.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnxtrain.testing.case import (
    Case,
    Input,
    derived,
    given,
    integers,
    normal,
    only,
    uniform,
)
from onnxtrain.types import FLOATS, OWN, DataType

SINGLE = only(DataType.FLOAT)
Tensor = torch.Tensor
_Q, _K, _V = normal(2, 4, 3, 8), normal(2, 4, 5, 8), normal(2, 4, 5, 6)
_PAST = [normal(2, 4, 2, 8), normal(2, 4, 2, 6)]


def _attention(
    name: str,
    *inputs: Input | None,
    opset: int | None = None,
    outputs: int = 1,
    dtypes: frozenset[DataType] = SINGLE,
    **attributes: Any,
) -> Case:
    return Case("Attention", inputs, attributes=attributes, outputs=outputs, opset=opset,
                name=name, dtypes=dtypes, gradient=False)  # fmt: skip


def _mask(*shape: int) -> Input:
    """Some pairs closed; the first one of each query is open."""

    def make(generator: torch.Generator) -> torch.Tensor:
        mask = torch.rand(shape, generator=generator) < 0.6
        mask[..., 0] = True
        return mask

    return Input(make, DataType.BOOL, grad=False)


ATTENTION = [
    _attention("plain", _Q, _K, _V, dtypes=FLOATS),
    _attention("plain", _Q, _K, _V, opset=23),
    _attention("packed", normal(2, 3, 32), normal(2, 5, 32), normal(2, 5, 24), q_num_heads=4,
               kv_num_heads=4),
    _attention("shared-heads", _Q, normal(2, 2, 5, 8), normal(2, 2, 5, 6)),
    _attention("scale", _Q, _K, _V, scale=0.3),
    _attention("causal", _Q, _K, _V, is_causal=1, dtypes=FLOATS),
    _attention("bias", _Q, _K, _V, normal(3, 5), dtypes=FLOATS),
    _attention("bias-per-head", _Q, _K, _V, normal(4, 3, 5), is_causal=1),
    _attention("mask", _Q, _K, _V, _mask(2, 1, 3, 5)),
    _attention("mask-of-keys", _Q, _K, _V, _mask(5), opset=24),
    _attention("short-mask", _Q, _K, _V, _mask(3, 4), opset=24),
    _attention("closed-row", _Q, _K, _V, given([[True] * 5, [False] * 5, [True] * 5])),
    _attention("past", _Q, _K, _V, None, *_PAST, outputs=3, is_causal=1),
    _attention("past-shared", _Q, normal(2, 2, 5, 8), normal(2, 2, 5, 6), normal(3, 7),
               normal(2, 2, 2, 8), normal(2, 2, 2, 6), outputs=3),
    _attention("lengths", _Q, _K, _V, None, None, None, given([5, 3]), opset=24),
    _attention("lengths-causal", _Q, _K, _V, None, None, None, given([4, 2]), is_causal=1,
               opset=24),
    _attention("window", _Q, _K, _V, opset=25, left_window_size=1, right_window_size=1),
    _attention("window-past", _Q, _K, _V, None, *_PAST, outputs=3, opset=25, is_causal=1,
               left_window_size=2),
    _attention("softcap", _Q, _K, _V, softcap=2.0, dtypes=FLOATS),
    _attention("rounded-softmax", _Q, _K, _V, softmax_precision=int(DataType.DOUBLE)),
    *(
        _attention(f"scores-{mode}", _Q, _K, _V, normal(3, 5), None, None, outputs=4,
                   qk_matmul_output_mode=mode, softcap=2.0 if mode else 0.0)
        for mode in range(4)
    ),
]  # fmt: skip


def _attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    lengths: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int = 0,
    left_window_size: int = -1,
    q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> tuple[Tensor, ...]:
    """Scores of every pair, closed where a rule says so, and their softmax."""
    heads = q_num_heads or q.shape[1]
    query, keys, values = (
        x if x.ndim == 4 else x.reshape(*x.shape[:2], n, -1).permute(0, 2, 1, 3)
        for x, n in ((q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads))
    )
    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        keys, values = torch.cat([past_key, keys], 2), torch.cat([past_value, values], 2)
    copies = [x[:, [h * x.shape[1] // heads for h in range(heads)]] for x in (keys, values)]
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    raw = torch.einsum("bhqd,bhkd->bhqk", query, copies[0]) * factor
    capped = raw if not softcap else softcap * torch.tanh(raw / softcap)
    count = keys.shape[2]
    ends = None if lengths is None else lengths.reshape(-1, 1, 1, 1)
    first = past if ends is None else ends - query.shape[2]
    ahead = torch.arange(count) - (torch.arange(query.shape[2]).unsqueeze(1) + first)
    allowed = torch.ones_like(ahead, dtype=torch.bool)
    for limit, inside in (
        (bool(is_causal), ahead <= 0),
        (left_window_size >= 0, ahead >= -left_window_size),
        (right_window_size >= 0, ahead <= right_window_size),
        (ends is not None, torch.arange(count) < (count if ends is None else ends)),
    ):
        allowed = allowed & inside if limit else allowed
    biased = capped
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        missing = count - attn_mask.shape[-1]
        allowed = allowed & torch.nn.functional.pad(attn_mask, (0, missing))
    elif attn_mask is not None:
        biased = capped + attn_mask
    powers = torch.exp(biased - biased.amax(-1, keepdim=True)) * allowed
    total = powers.sum(-1, keepdim=True)
    weights = powers / torch.where(total == 0, 1.0, total)
    y = torch.einsum("bhqk,bhkd->bhqd", weights, copies[1])
    y = y if q.ndim == 4 else y.permute(0, 2, 1, 3).flatten(2)
    return y, keys, values, (raw, capped, biased, weights)[qk_matmul_output_mode]


def _differentiated(
    rows: Sequence[Case], reference: Callable[..., Any], *dtypes: DataType
) -> list[Case]:
    """The same rows, for gradients."""
    return [
        dataclasses.replace(
            row,
            reference=reference,
            dtypes=only(*dtypes),
            gradient=True,
            name=f"{row.name or len(row.attributes)}-gradient",
        )
        for row in rows
    ]


ATTENTION += _differentiated(
    [row for row in ATTENTION if row.name != "rounded-softmax"],
    _attended,
    DataType.FLOAT,
    DataType.DOUBLE,
)
_SQUARE = [_Q, normal(2, 4, 3, 8), normal(2, 4, 3, 8)]
# ONNX's reference takes the root of the scale
ATTENTION += _differentiated(
    [
        _attention("turned", *_SQUARE, scale=-0.3),
        _attention("turned-causal", *_SQUARE, scale=-0.3, is_causal=1),
        _attention("level-causal", *_SQUARE, scale=0.0, is_causal=1),
        _attention("turned-softcap", *_SQUARE, scale=-0.3, softcap=2.0),
    ],
    _attended,
    DataType.FLOAT,
    DataType.DOUBLE,
)


def _angles(*shape: int) -> list[Input]:
    """Cosines and sines."""

    def angles(generator: torch.Generator) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64) * 6

    pair = [derived(lambda g: angles(g).cos()), derived(lambda g: angles(g).sin())]
    return [item.no_grad() for item in pair]


_IDS = integers(2, 3, high=9)
ROTARY = [
    Case("RotaryEmbedding", [normal(2, 4, 3, 8), *_angles(9, 4), _IDS], gradient=False),
    Case("RotaryEmbedding", [normal(2, 4, 3, 8), *_angles(2, 3, 4)], gradient=False,
         name="no-positions"),
    Case("RotaryEmbedding", [normal(2, 3, 32), *_angles(9, 4), _IDS], name="packed",
         attributes={"num_heads": 4, "interleaved": 1}, gradient=False),
    Case("RotaryEmbedding", [normal(2, 4, 3, 8), *_angles(9, 2), _IDS],
         attributes={"rotary_embedding_dim": 4}, gradient=False),
]  # fmt: skip


def _rotated(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    """Pairs of features as complex numbers, multiplied by the angles."""
    heads = x.reshape(*x.shape[:2], num_heads, -1) if x.ndim == 3 else x.permute(0, 2, 1, 3)
    size = rotary_embedding_dim or heads.shape[-1]
    angles = torch.complex(cos, sin)
    angles = (angles if positions is None else angles[positions]).unsqueeze(2)
    part = heads[..., :size]
    pairs = part.unflatten(-1, (-1, 2) if interleaved else (2, -1))
    pairs = pairs if interleaved else pairs.transpose(-1, -2)
    turned = torch.view_as_real(torch.complex(*pairs.unbind(-1)) * angles)
    turned = (turned if interleaved else turned.transpose(-1, -2)).flatten(-2)
    y = torch.cat([turned, heads[..., size:]], -1)
    return y.flatten(2) if x.ndim == 3 else y.permute(0, 2, 1, 3)


def _trained(row: Case) -> Case:
    """A row whose floating point inputs all have a gradient."""
    inputs = [item and dataclasses.replace(item, grad=item.dtype is None) for item in row.inputs]
    return dataclasses.replace(row, inputs=inputs)


ROTARY += _differentiated([_trained(row) for row in ROTARY], _rotated, DataType.FLOAT)


def _linear(rule: str, *more: Input | None, heads: int = 2, **attributes: Any) -> Case:
    keys = normal(2, 5, 2 * 4, scale=0.4)
    return Case(
        "LinearAttention",
        [normal(2, 5, heads * 4), keys, normal(2, 5, 2 * 3), *more],
        attributes={"update_rule": rule, "q_num_heads": heads, "kv_num_heads": 2, **attributes},
        outputs=2,
        gradient=False,
    )


_DECAY, _RATE = uniform(2, 5, 2, low=-1.0), uniform(2, 5, 2)
LINEAR = [
    _linear("linear"),
    _linear("gated", None, _DECAY, scale=0.5),
    _linear("delta", normal(2, 2, 4, 3), None, _RATE),
    _linear("gated_delta", normal(2, 2, 4, 3), uniform(2, 5, 8, low=-1.0), uniform(2, 5, 1),
            heads=6),
]  # fmt: skip


def _recurred(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Tensor, Tensor]:
    """Position by position; S[b, h, k, v] is decayed, corrected and read."""
    batch, positions = query.shape[:2]
    q, k, v = (
        x.reshape(batch, positions, n, -1)
        for x, n in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
    )
    state = k.new_zeros(batch, kv_num_heads, k.shape[-1], v.shape[-1]) if past is None else past
    group = [h * kv_num_heads // q_num_heads for h in range(q_num_heads)]
    rows = []
    for t in range(positions):
        if decay is not None:
            rate = decay[:, t].exp().reshape(batch, kv_num_heads, -1, 1)
            state = state * rate
        new = v[:, t]
        if beta is not None:
            known = torch.einsum("bhk,bhkv->bhv", k[:, t], state)
            new = (new - known) * beta[:, t].unsqueeze(-1)
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], new)
        rows.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state[:, group]).flatten(1))
    return torch.stack(rows, 1) * (scale or k.shape[-1] ** -0.5), state


LINEAR += _differentiated(LINEAR, _recurred, DataType.FLOAT)
_SIGNAL, _FILTER = normal(2, 3, 6), normal(3, 1, 4)
CONV = [
    Case("CausalConvWithState", [_SIGNAL, _FILTER], outputs=2, gradient=False),
    Case("CausalConvWithState", [_SIGNAL, _FILTER, normal(3), normal(2, 3, 3)], outputs=2,
         attributes={"activation": "silu"}, gradient=False),
    Case("CausalConvWithState", [normal(2, 3, 1), normal(3, 1, 1)], outputs=2, gradient=False,
         name="one-tap"),
]  # fmt: skip


def _convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past: Tensor | None = None,
    *,
    activation: str = "none",
) -> tuple[Tensor, Tensor]:
    """Tap by tap."""
    reach, count = weight.shape[2] - 1, x.shape[2]
    before = x.new_zeros(*x.shape[:2], reach) if past is None else past
    whole = torch.cat([before, x], 2)
    y = sum(whole[:, :, i : i + count] * weight[:, 0, i : i + 1] for i in range(reach + 1))
    assert isinstance(y, Tensor)
    y = y if bias is None else y + bias.unsqueeze(1)
    return y if activation == "none" else y * torch.sigmoid(y), whole[:, :, count:]


CONV += _differentiated(CONV, _convolved, DataType.FLOAT)


def _rotate(
    x: Tensor, cos: Tensor, sin: Tensor, *, inverse: int = 0, interleaved: int = 0
) -> Tensor:
    """By a matrix that turns pairs; one that repeats angles if there is one for each pair."""
    each, pair = (torch.tensor(t, dtype=x.dtype) for t in ([[1, 1]], [[0, 1], [-1, 0]]))
    one = torch.eye(x.shape[-1] // 2, dtype=x.dtype)
    turn, both = (torch.kron(*((one, t) if interleaved else (t, one))) for t in (pair, each))
    cos, sin = (t if t.shape[-1] == x.shape[-1] else t @ both for t in (cos, sin))
    return x * cos + ((x * sin) @ -turn if inverse else (x @ turn) * sin)


ROTATE = [
    Case("Rotate", [normal(*shape), normal(*angles), normal(*angles)], _rotate,
         {"inverse": inverse, "interleaved": interleaved}, domain=OWN, dtypes=FLOATS,
         name=f"{name}{inverse}{'pairs' * interleaved}")
    for name, shape, angles in (
        ("heads", (2, 3, 4, 6), (1, 1, 4, 6)),
        ("plain", (5, 8), (5, 8)),
        ("row", (3, 2, 4), (4,)),
        ("shared", (2, 3, 6), (3, 3)),
        ("empty", (0, 3, 4), (3, 4)),
    )
    for inverse in (0, 1)
    for interleaved in (0, 1)
]  # fmt: skip
CASES: list[Case] = [*ATTENTION, *ROTARY, *ROTATE, *LINEAR, *CONV]
