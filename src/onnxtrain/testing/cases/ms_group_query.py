"""Rows for grouped attention, positions, embeddings and packed batches of com.microsoft."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.testing.case import Case, Input, derived, given, integers, normal
from onnxtrain.testing.cases.ms_attention import INT32, WIDE, attended, ints, joined, split
from onnxtrain.types import FLOATS, MS, DataType

N, K, H = 4, 2, 6
"""Heads of queries and of keys, and features of a head."""


def turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: int) -> Tensor:
    """[..., position, size] with pairs of features turned, one by one."""
    size = 2 * cos.shape[-1]
    columns = list(x.unbind(-1))
    for i in range(size // 2):
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + size // 2)
        a, b, c, s = x[..., first], x[..., second], cos[..., i], sin[..., i]
        columns[first], columns[second] = a * c - b * s, b * c + a * s
    return torch.stack(columns, -1)


def _rms(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight


def _group_query(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    lengths: Tensor,
    total: Tensor,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    positions: Tensor | None = None,
    bias: Tensor | None = None,
    sink: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    do_rotary: int = 0,
    rotary_interleaved: int = 0,
    local_window_size: int = -1,
    softcap: float = 0.0,
    smooth_softmax: int = -1,
    causal: int = 1,
    scale: float = 0.0,
    qk_output: int = 0,
    qk_norm_epsilon: float = 1e-6,
) -> tuple[Tensor, ...]:
    size = query.shape[2] // (num_heads + 2 * kv_num_heads) * kv_num_heads
    if key is None or value is None:
        query, key, value = query.split([query.shape[2] - 2 * size, size, size], 2)
    new, most = query.shape[1], int(total)
    sink = torch.zeros(num_heads, dtype=query.dtype) if smooth_softmax == 1 else sink
    results = []
    for b in range(len(query)):
        end = int(lengths[b]) + 1
        start = 0 if new == most else end - new
        q, k, v = (
            split(x[b], heads)
            for x, heads in ((query, num_heads), (key, kv_num_heads), (value, kv_num_heads))
        )
        if q_norm is not None and k_norm is not None:
            q, k = _rms(q, q_norm, qk_norm_epsilon), _rms(k, k_norm, qk_norm_epsilon)
        if do_rotary and cos is not None and sin is not None:
            at = torch.arange(start, start + new) if positions is None else positions[b]
            q, k = (turned(x, cos[at], sin[at], rotary_interleaved) for x in (q, k))
        room = max(most, 0 if past_key is None else past_key.shape[2])
        k = _stored(None if past_key is None else past_key[b], k, start, room)
        v = _stored(None if past_value is None else past_value[b], v, start, room)
        allowed = _allowed(start, new, end, most, local_window_size, causal)
        y, scores, weights = attended(
            q,
            k[:, :most].repeat_interleave(num_heads // kv_num_heads, 0),
            v[:, :most].repeat_interleave(num_heads // kv_num_heads, 0),
            scale=scale,
            bias=0.0 if bias is None else bias[b % len(bias)],
            allowed=allowed,
            softcap=softcap,
            sink=sink,
        )
        shown = torch.where(allowed, scores, 0) if qk_output == 1 else weights
        results.append((joined(y), k, v, shown))
    return tuple(torch.stack(parts) for parts in zip(*results, strict=True))


def _stored(past: Tensor | None, new: Tensor, start: int, room: int) -> Tensor:
    """What is kept of the past, what is new, and zeros."""
    parts = [new] if past is None else [past[:, :start], new]
    full = torch.cat(parts, 1)
    return functional.pad(full, (0, 0, 0, room - full.shape[1]))


def _allowed(start: int, new: int, end: int, total: int, window: int, causal: int) -> Tensor:
    rows = []
    for position in range(start, start + new):
        first = max(0, position + 1 - window) if window > 0 and causal else 0
        last = min(end, position + 1) if causal else end
        rows.append([first <= key < last for key in range(total)])
    return torch.tensor(rows)


def _group(
    name: str,
    lengths: Sequence[int],
    total: int,
    *more: Input | None,
    past: int | None = None,
    new: int = 3,
    packed: bool = False,
    outputs: int = 3,
    dtypes: frozenset[DataType] = WIDE,
    **attributes: Any,
) -> Case:
    batch = len(lengths)
    parts: list[Input | None] = [normal(batch, new, heads * H) for heads in (N, K, K)]
    if packed:
        parts = [normal(batch, new, (N + 2 * K) * H), None, None]
    cache = [None if past is None else normal(batch, K, past, H)] * 2
    options = {"num_heads": N, "kv_num_heads": K, **attributes}

    def reference(*values: Any, **named: Any) -> Any:
        return _group_query(*values, **named)[:outputs]

    return Case("GroupQueryAttention", [*parts, *cache, ints(lengths), ints(total), *more],
                reference, options, MS, outputs=outputs, dtypes=dtypes, name=name)  # fmt: skip


def _angles(rows: int, count: int) -> list[Input]:
    """Cosines and sines."""

    def angles(g: torch.Generator) -> Tensor:
        return torch.rand(rows, count, generator=g, dtype=torch.float64) * 6

    return [derived(lambda g: angles(g).cos()), derived(lambda g: angles(g).sin())]


_FULL, _PART = _angles(9, 3), _angles(9, 2)
GROUP_QUERY = [
    _group("first", [2, 2], 3, dtypes=FLOATS),
    _group("padded-packed", [1, 2], 3, packed=True, dtypes=FLOATS),
    _group("next", [4, 2], 5, past=4, new=1, dtypes=FLOATS),
    _group("next-in-buffer", [5, 3], 6, past=8, new=2),
    _group("window", [5, 4], 6, past=8, new=2, local_window_size=2, scale=0.3),
    _group("both-ways", [1, 2], 3, causal=0),
    _group("bias", [2, 2], 3, None, None, None, normal(1, N, 3, 3), dtypes=FLOATS),
    _group("softcap-sink", [4, 2], 5, None, None, None, normal(2, 1, 1, 5), normal(N), past=4,
           new=1, softcap=2.0, dtypes=FLOATS),
    _group("smooth", [2, 1], 3, smooth_softmax=1, outputs=1),
    _group("rotary", [1, 2], 3, *_FULL, do_rotary=1),
    _group("rotary-part-next", [4, 2], 5, *_PART, past=4, new=1, do_rotary=1,
           rotary_interleaved=1),
    _group("positions-next", [4, 2], 5, *_FULL, given([[7], [1]]), past=4, new=1, packed=True,
           do_rotary=1),
    _group("normalized", [2, 1], 3, *_FULL, None, None, None, None, None, normal(H), normal(H),
           do_rotary=1),
    _group("scores", [2, 1], 3, None, None, None, normal(1, 1, 3, 3), outputs=4, qk_output=1),
    _group("weights", [4, 2], 5, past=4, new=1, outputs=4, qk_output=2, local_window_size=2),
]  # fmt: skip


def _rotary(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, *, interleaved: int = 0, **sizes: int
) -> Tensor:
    if positions.ndim == 1:
        positions = positions + torch.arange(x.shape[-2]).unsqueeze(0)
    heads = sizes.get("num_heads") or x.shape[-1] // (2 * cos.shape[1])
    cos, sin = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
    if x.ndim == 4:
        return turned(x, cos, sin, interleaved)
    return joined(turned(split(x, heads), cos, sin, interleaved))


def _turn(name: str, x: Input, positions: Input, *angles: Input, **attributes: Any) -> Case:
    return Case("RotaryEmbedding", [x, positions, *angles], _rotary, attributes, MS, name=name)


_IDS = integers(2, 3, high=9)
ROTARY = [
    _turn("ms-heads", normal(2, N, 3, H), _IDS, *_FULL),
    _turn("ms-first-position", normal(2, N, 3, H), given([3]), *_FULL, interleaved=1),
    _turn("ms-merged", normal(2, 3, N * H), _IDS, *_FULL),
    _turn("ms-part", normal(2, 3, N * H), given([0]), *_PART, num_heads=N, rotary_embedding_dim=4,
          interleaved=1),
]  # fmt: skip


def _embed(
    ids: Tensor,
    segments: Tensor | None,
    words: Tensor,
    places: Tensor,
    kinds: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None = None,
    positions: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Tensor, ...]:
    at = torch.arange(ids.shape[1]) if positions is None else positions.long()
    total = functional.embedding(ids.long(), words) + functional.embedding(at, places)
    if segments is not None and kinds is not None:
        total = total + functional.embedding(segments.long(), kinds)
    y = functional.layer_norm(total, gamma.shape, gamma, beta, epsilon)
    ones = torch.zeros(len(ids)) if mask is None else (mask == 1).sum(1)
    return y, ones, total


def _embedding(name: str, *inputs: Input | None, **attributes: Any) -> Case:
    return Case("EmbedLayerNormalization", inputs, _embed, attributes, MS, outputs=3, name=name)


_WORDS, _KINDS = integers(2, 3, high=9, dtype=INT32), integers(2, 3, high=2, dtype=INT32)
_TABLES, _SCALE = (normal(9, 6), normal(5, 6), normal(2, 6)), (normal(6), normal(6))
EMBEDDING = [
    _embedding("all", _WORDS, _KINDS, *_TABLES, *_SCALE, ints([[1, 1, 0], [1, 1, 1]])),
    _embedding("no-segments", _WORDS, None, *_TABLES[:2], None, *_SCALE, epsilon=0.125),
    _embedding("positions", _WORDS, _KINDS, *_TABLES, *_SCALE, None, ints([[4, 0, 4]])),
]


def _bucket(ahead: int, buckets: int, far: int, both: int) -> int:
    first, distance = 0, max(0, -ahead)
    if both:
        buckets //= 2
        first, distance = (buckets if ahead > 0 else 0), abs(ahead)
    near = buckets // 2
    if distance < near:
        return first + distance
    wider = near + math.log(distance / near) / math.log(far / near) * (buckets - near)
    return first + min(buckets - 1, int(wider))


def _relative(
    table: Tensor, query: Tensor, key: Tensor, *, max_distance: int, is_bidirectional: int = 0
) -> Tensor:
    buckets, heads = table.shape
    where = [
        [_bucket(k - q, buckets, max_distance, is_bidirectional) for k in range(int(key))]
        for q in range(int(query))
    ]
    return table.reshape(heads, buckets)[:, torch.tensor(where)].unsqueeze(0)


def _gated(
    query: Tensor,
    shift: Tensor,
    positions: Tensor,
    weight: Tensor,
    bias: Tensor,
    eco: Tensor,
    places: Tensor | None = None,
    *,
    num_heads: int,
) -> Tensor:
    query = query + shift
    query = query if places is None else _spread(query, places)
    gates = split(query, num_heads) @ weight + bias
    half = gates.shape[-1] // 2
    u = torch.sigmoid(gates[..., :half].sum(-1, keepdim=True))
    r = torch.sigmoid(gates[..., half:].sum(-1, keepdim=True))
    return (u * (r * eco - 1) + 2) * positions


def _relative_case(name: str, *sizes: int, **attributes: Any) -> Case:
    lengths = [given([size], constant=True) for size in sizes]
    return Case("RelativePositionBias", [normal(8, 3), *lengths], _relative, attributes, MS,
                name=name)  # fmt: skip


_GATE = normal(1, N, 3, 3), normal(H, 8), normal(8), normal(1, N, 1, 1)
_PLACES = ints([[0, 1, 3], [4, 5, 2]])
"""Where five tokens are in two sequences of three, and then where the padding is."""
BIASES = [
    _relative_case("back", 5, 5, max_distance=20),
    _relative_case("both-ways", 4, 11, max_distance=9, is_bidirectional=1),
    Case("GatedRelativePositionBias", [normal(2, 3, N * H), normal(N * H), *_GATE], _gated,
         {"num_heads": N}, MS, name="full"),
    Case("GatedRelativePositionBias", [normal(5, N * H), normal(N * H), *_GATE, _PLACES], _gated,
         {"num_heads": N}, MS, name="packed"),
]  # fmt: skip


def _spread(tokens: Tensor, places: Tensor) -> Tensor:
    """Tokens where they belong; a row of the identity for each place picks its token."""
    order = {int(place): index for index, place in enumerate(places.flatten()[: len(tokens)])}
    zero = torch.zeros_like(tokens[0])
    rows = [tokens[order[p]] if p in order else zero for p in range(places.numel())]
    return torch.stack(rows).reshape(*places.shape, *tokens.shape[1:])


def _removed(x: Tensor, counts: Tensor) -> tuple[Tensor, ...]:
    rows = [x[b, : int(count)] for b, count in enumerate(counts)]
    numbers = torch.arange(x.shape[0] * x.shape[1]).reshape(x.shape[:2])
    kept = [numbers[b, : int(count)] for b, count in enumerate(counts)]
    rest = [numbers[b, int(count) :] for b, count in enumerate(counts)]
    sums = torch.tensor([0, *counts.cumsum(0).tolist()])
    return torch.cat(rows), torch.cat([*kept, *rest]).reshape(x.shape[:2]), sums, counts.max()[None]


def _packed_heads(heads: Sequence[Tensor], sums: Tensor, bias: Any, scale: float) -> Tensor:
    """Attention inside each run of tokens; heads are [head, token, size]."""
    results = []
    for b in range(len(sums) - 1):
        run = slice(int(sums[b]), int(sums[b + 1]))
        size = run.stop - run.start
        extra = 0.0 if bias is None else bias[b % len(bias), :, :size, :size]
        q, k, v = (x[:, run] for x in heads)
        results.append(attended(q, k, v, scale=scale, bias=extra)[0])
    return joined(torch.cat(results, 1))


def _packed(
    x: Tensor, w: Tensor, b: Tensor | None, places: Tensor, sums: Tensor, bias: Any = None, *,
    num_heads: int, scale: float = 0.0, qkv_hidden_sizes: Sequence[int] = (),
) -> Tensor:  # fmt: skip
    product = x @ w if b is None else x @ w + b
    parts = product.split(list(qkv_hidden_sizes or [product.shape[1] // 3] * 3), 1)
    return _packed_heads([split(p, num_heads) for p in parts], sums, bias, scale)


def _packed_multi(
    q: Tensor, k: Any, v: Any, b: Any, places: Tensor, sums: Tensor, bias: Any = None, *,
    num_heads: int, scale: float = 0.0,
) -> Tensor:  # fmt: skip
    parts = [q[:, :, i].flatten(1) for i in range(3)] if q.ndim == 4 else [q, k, v]
    if b is not None:
        parts = [x + s for x, s in zip(parts, b.split([x.shape[1] for x in parts]), strict=True)]
    return _packed_heads([split(p, num_heads) for p in parts], sums, bias, scale)


_SUMS, _MORE = ints([0, 2, 5]), normal(1, N, 3, 3)
PACKED = [
    Case("RemovePadding", [normal(2, 3, 4), ints([2, 3])], _removed, {}, MS, outputs=4),
    Case("RemovePadding", [normal(2, 3, 4), ints([0, 1])], _removed, {}, MS, outputs=4,
         name="empty"),
    Case("RestorePadding", [normal(5, 4), _PLACES], _spread, {}, MS),
    Case("PackedAttention", [normal(5, 7), normal(7, 48, scale=0.4), normal(48), _PLACES, _SUMS],
         _packed, {"num_heads": N}, MS, name="plain"),
    Case("PackedAttention", [normal(5, 7), normal(7, 40, scale=0.4), None, _PLACES, _SUMS, _MORE],
         _packed, {"num_heads": N, "qkv_hidden_sizes": [16, 16, 8]}, MS, name="sizes-bias"),
    Case("PackedMultiHeadAttention", [normal(5, 16), normal(5, 16), normal(5, 8), None, _PLACES,
         _SUMS, _MORE], _packed_multi, {"num_heads": N, "scale": 0.3}, MS, name="apart"),
    Case("PackedMultiHeadAttention", [normal(5, N, 3, 4), None, None, normal(48), _PLACES, _SUMS],
         _packed_multi, {"num_heads": N}, MS, name="together"),
]  # fmt: skip

CASES: list[Case] = [*GROUP_QUERY, *ROTARY, *EMBEDDING, *BIASES, *PACKED]
