"""Rows for the attention operators of com.microsoft that know nothing of single sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, given, integers, normal, only
from onnxtrain.types import FLOATS, MS, DataType

INT8, INT32, UINT8 = DataType.INT8, DataType.INT32, DataType.UINT8
WIDE = only(DataType.FLOAT, DataType.DOUBLE)


def ints(values: Any) -> Input:
    """Fixed int32 numbers."""
    return given(values, INT32)


def split(x: Tensor, heads: int) -> Tensor:
    """[..., head, position, size] of [..., position, head · size]."""
    return x.reshape(*x.shape[:-1], heads, -1).movedim(-2, -3)


def joined(x: Tensor) -> Tensor:
    """[..., position, head · size] of [..., head, position, size]."""
    return x.movedim(-3, -2).flatten(-2)


def attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float = 0.0,
    bias: Any = 0.0,
    allowed: Tensor | None = None,
    softcap: float = 0.0,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, scores and weights; a sink is one more score whose value is 0."""
    scores = torch.einsum("...qd,...kd->...qk", q, k) * (scale or q.shape[-1] ** -0.5)
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    scores = scores + bias
    open_scores = scores if allowed is None else scores.masked_fill(~allowed, -math.inf)
    top = open_scores.amax(-1, keepdim=True).detach()
    powers = torch.exp(open_scores - top)
    total = powers.sum(-1, keepdim=True)
    total = total if sink is None else total + torch.exp(sink.reshape(-1, 1, 1) - top)
    return powers / total @ v, scores, powers / total


def triangle(queries: int, keys: int, past: int) -> Tensor:
    """Which keys are not ahead of a query."""
    return torch.ones(queries, keys, dtype=torch.bool).tril(past)


def closed(mask: Tensor | None, value: float, query: Tensor, keys: int) -> Any:
    """What a mask adds to the scores of each sequence: [batch, 1, query, key]."""
    if mask is None:
        return 0.0
    batch, _, queries, _ = query.shape
    rows = [
        [
            [0.0 if _is_open(mask, batch, b, q, k, keys - queries) else value for k in range(keys)]
            for q in range(queries)
        ]
        for b in range(batch)
    ]
    return torch.tensor(rows, dtype=query.dtype).unsqueeze(1)


def _is_open(mask: Tensor, batch: int, b: int, q: int, k: int, before: int) -> bool:
    if mask.ndim == 1:
        start = int(mask[batch + b]) if len(mask) == 2 * batch else 0
        return start <= k < int(mask[b])
    place = {2: (b, k), 3: (b, q, k), 4: (b, 0, q + before, k)}[mask.ndim]
    return bool(mask[place] > 0)


def self_attention(
    product: Tensor,
    mask: Tensor | None,
    past: Tensor | None,
    bias: Tensor | None = None,
    used: Tensor | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: int = 0,
    qkv_hidden_sizes: Sequence[int] = (),
    do_rotary: int = 0,
    rotary_embedding_dim: int = 0,
    past_present_share_buffer: int = 0,
) -> tuple[Tensor, Tensor]:
    """Attention of projections."""
    third = product.shape[-1] // 3
    parts = product.split(list(qkv_hidden_sizes or [third] * 3), -1)
    q, k, v = (split(part, num_heads) for part in parts)
    before = 0 if past is None else past.shape[3] if used is None else int(used)
    if do_rotary:
        size = rotary_embedding_dim or q.shape[-1]
        q, k = (_turned(x, before, size) for x in (q, k))
    rest = None if past is None else past[:, :, :, before + k.shape[2] :]
    if past is not None:
        k, v = (torch.cat([past[i, :, :, :before], x], 2) for i, x in ((0, k), (1, v)))
    queries, keys = q.shape[2], k.shape[2]
    extra = closed(mask, mask_filter_value, q, keys)
    allowed = triangle(queries, keys, before) if unidirectional else None
    extra = extra if bias is None else extra + bias
    y, _, _ = attended(q, k, v, scale=scale, bias=extra, allowed=allowed)
    present = torch.stack([k, v]) if k.shape == v.shape else k
    if used is not None and rest is not None:
        present = torch.cat([present, rest], 3)
    return joined(y), present


def _turned(x: Tensor, start: int, size: int) -> Tensor:
    """Pairs (i, i + size/2) as complex numbers, multiplied by e^(i·angle)."""
    half = size // 2
    angle = torch.tensor(
        [
            [p / 10000 ** (2 * i / size) for i in range(half)]
            for p in range(start, start + x.shape[2])
        ],
        dtype=x.dtype,
    )
    a, b, kept = x[..., :half], x[..., half:size], x[..., size:]
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag, kept], -1)


def _attention(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
    past: Tensor | None = None,
    bias: Tensor | None = None,
    used: Tensor | None = None,
    **attributes: Any,
) -> tuple[Tensor, Tensor]:
    product = x @ w if b is None else x @ w + b
    return self_attention(product, mask, past, bias, used, **attributes)


def _quantized(
    x: Tensor,
    w: Tensor,
    b: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    mask: Tensor | None = None,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    past: Tensor | None = None,
    **attributes: Any,
) -> tuple[Tensor, Tensor]:
    steps = [
        t.to(torch.int64) if zero is None else t.to(torch.int64) - zero.to(torch.int64)
        for t, zero in ((x, x_zero), (w, w_zero))
    ]
    product = (steps[0] @ steps[1]).to(b.dtype) * (x_scale * w_scale) + b
    return self_attention(product, mask, past, **attributes)


N = 2
_X, _W, _B = normal(2, 3, 5), normal(5, 24, scale=0.4), normal(24)
_PAST, _BUFFER = normal(2, 2, N, 2, 4), normal(2, 2, N, 7, 4)


def _self(
    name: str,
    *more: Input | None,
    inputs: Sequence[Input | None] = (_X, _W, _B),
    outputs: int = 1,
    dtypes: frozenset[DataType] = WIDE,
    **attributes: Any,
) -> Case:
    reference = _attention if outputs > 1 else _first(_attention)
    return Case("Attention", [*inputs, *more], reference, {"num_heads": N, **attributes}, MS,
                outputs=outputs, dtypes=dtypes, name=name)  # fmt: skip


def _first(reference: Any) -> Any:
    """The first output alone."""
    return lambda *inputs, **attributes: reference(*inputs, **attributes)[0]


ATTENTION = [
    _self("plain", dtypes=FLOATS),
    _self("no-bias", inputs=(_X, _W), scale=0.3),
    _self("lengths", ints([2, 3])),
    _self("ends-and-starts", ints([2, 3, 0, 1]), dtypes=FLOATS),
    _self("lengths-and-offsets", ints([2, 3, 0, 3, 6, 0, 2, 5])),
    _self("mask", ints([[1, 0, 1], [0, 1, 0]]), dtypes=FLOATS),
    _self("mask-of-pairs-causal", ints([[[1, 0, 1], [1, 1, 1], [0, 0, 1]]] * 2), unidirectional=1,
          mask_filter_value=-3.0),
    _self("mask-of-positions", integers(2, 1, 7, 7, high=2, dtype=INT32), _PAST, outputs=2,
          mask_filter_value=-2.0),
    _self("causal", unidirectional=1, dtypes=FLOATS),
    _self("past-causal", None, _PAST, outputs=2, unidirectional=1),
    _self("attention-bias", None, None, normal(1, N, 3, 3), dtypes=FLOATS),
    _self("bias-mask-past", ints([4, 5]), _PAST, normal(2, 1, 3, 5), outputs=2),
    _self("sizes", inputs=(_X, normal(5, 22, scale=0.4), normal(22)), qkv_hidden_sizes=[8, 8, 6]),
    _self("rotary", do_rotary=1),
    _self("rotary-part-past", None, _PAST, outputs=2, do_rotary=1, rotary_embedding_dim=2,
          unidirectional=1),
    _self("shared", None, _BUFFER, None, ints([2]), outputs=2, past_present_share_buffer=1,
          unidirectional=1),
]  # fmt: skip


def _bytes(*shape: int, dtype: DataType) -> Input:
    low = -20 if dtype == INT8 else 0
    return integers(*shape, low=low, high=low + 40, dtype=dtype)


_SCALES = given(0.02), given([0.005 * (1 + i % 5) for i in range(24)])
_ZEROS = given(12, UINT8), given(-3, INT8)


def _q(name: str, *more: Input | None, outputs: int = 1, **attributes: Any) -> Case:
    inputs = [_bytes(2, 3, 5, dtype=UINT8), _bytes(5, 24, dtype=INT8), _B, *_SCALES, *more]
    reference = _quantized if outputs > 1 else _first(_quantized)
    return Case("QAttention", inputs, reference, {"num_heads": N, **attributes}, MS,
                outputs=outputs, dtypes=WIDE, name=name)  # fmt: skip


QUANTIZED = [
    _q("plain"),
    _q("zero-points", ints([2, 3]), *_ZEROS),
    _q("past", None, *_ZEROS, _PAST, outputs=2, unidirectional=1),
]


def _multi_head(
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    extra: Any = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    used: Tensor | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> tuple[Tensor, ...]:
    if query.ndim == 5:
        flat = [query[:, :, :, i].flatten(2) for i in range(3)]
    elif key is not None and key.ndim == 5:
        flat = [query, *(key[:, :, :, i].flatten(2) for i in range(2))]
    elif key is not None and value is not None:
        cached = key.ndim == 4
        flat = [query, joined(key) if cached else key, joined(value) if cached else value]
    if bias is not None:
        shifts = bias.split([x.shape[2] for x in flat])
        only_query = key is not None and key.ndim == 4
        flat = [x if only_query and i else x + shifts[i] for i, x in enumerate(flat)]
    q, k, v = (split(x, num_heads) for x in flat)
    before = 0
    rest: list[Tensor] = []
    if past_key is not None and past_value is not None:
        before = past_key.shape[2] if used is None else int(used)
        rest = [p[:, :, before + k.shape[2] :] for p in (past_key, past_value)]
        k = torch.cat([past_key[:, :, :before], k], 2)
        v = torch.cat([past_value[:, :, :before], v], 2)
    queries, keys = q.shape[2], k.shape[2]
    position = before + max(keys - before - queries, 0)
    allowed = triangle(queries, keys, position) if unidirectional else None
    added = closed(mask, mask_filter_value, q, keys)
    added = added if extra is None else added + extra
    y, scores, _ = attended(q, k, v, scale=scale, bias=added, allowed=allowed)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    if used is not None:
        k, v = torch.cat([k, rest[0]], 2), torch.cat([v, rest[1]], 2)
    return joined(y), k, v, scores


def _multi(
    name: str,
    *inputs: Input | None,
    outputs: int = 1,
    dtypes: frozenset[DataType] = WIDE,
    **attributes: Any,
) -> Case:
    def reference(*values: Any, **options: Any) -> Any:
        return _multi_head(*values, **options)[:outputs]

    return Case("MultiHeadAttention", inputs, reference, {"num_heads": N, **attributes}, MS,
                outputs=outputs, dtypes=dtypes, name=name)  # fmt: skip


_Q, _K, _V = normal(2, 3, 8), normal(2, 5, 8), normal(2, 5, 6)
_SAME = _Q, normal(2, 3, 8), normal(2, 3, 8)
_CACHE = normal(2, N, 2, 4), normal(2, N, 2, 4)
_BUFFERS = normal(2, N, 6, 4), normal(2, N, 6, 4)
MULTI_HEAD = [
    _multi("plain", _Q, _K, _V, dtypes=FLOATS),
    _multi("bias-present", _Q, _K, _V, normal(22), outputs=3, dtypes=FLOATS),
    _multi("packed-keys", _Q, normal(2, 5, N, 2, 4), None, normal(24), outputs=3),
    _multi("packed", normal(2, 3, N, 3, 4), None, None, normal(24), unidirectional=1),
    _multi("packed-mask", normal(2, 3, N, 3, 4), None, None, None, ints([2, 3]), outputs=3),
    _multi("cross", _Q, normal(2, N, 5, 4), normal(2, N, 5, 4), normal(24), outputs=3),
    _multi("lengths", _Q, _K, _V, None, ints([2, 5]), scale=0.3),
    _multi("mask-and-bias", _Q, _K, _V, None, ints([[1, 0, 1, 1, 0], [0, 1, 0, 1, 1]]),
           normal(1, N, 3, 5), dtypes=FLOATS),
    _multi("mask-of-pairs", _Q, _K, _V, None, integers(2, 3, 5, high=2, dtype=INT32),
           mask_filter_value=-2.0),
    _multi("longer-causal", _Q, _K, _V, unidirectional=1),
    _multi("longer-causal-bias", _Q, _K, _V, None, None, normal(1, N, 3, 5), unidirectional=1),
    _multi("longer-causal-past", _Q, _K, normal(2, 5, 8), None, None, None, *_CACHE, outputs=3,
           unidirectional=1),
    _multi("one-query-causal", normal(2, 1, 8), _K, _V, unidirectional=1),
    _multi("shorter-causal", _Q, normal(2, 2, 8), normal(2, 2, 6), unidirectional=1),
    _multi("past-causal", *_SAME, None, None, normal(2, 1, 3, 5), *_CACHE, outputs=3,
           unidirectional=1),
    _multi("shared", *_SAME, normal(24), None, None, *_BUFFERS, ints([2]), outputs=3,
           unidirectional=1),
    _multi("scores", _Q, _K, _V, None, None, normal(1, N, 3, 5), outputs=4, dtypes=FLOATS),
    _multi("scores-causal", *_SAME, outputs=4, unidirectional=1, dtypes=only(DataType.DOUBLE)),
]  # fmt: skip

CASES: list[Case] = [*ATTENTION, *QUANTIZED, *MULTI_HEAD]
