"""Rows of FlashAttention; its gradient operator is checked by the gradients of these."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.autograd import pulled_back
from onnxtrain.testing.case import Case, Input, given, normal, only
from onnxtrain.types import FLOATS, OWN, DataType


def _attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    dropout: float = 0.0,
    is_causal: int = 0,
    scale: float | None = None,
) -> Tensor:
    """The softmax of the open pairs, written out."""
    heads = max(q.shape[1], k.shape[1])
    factor = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    scores = torch.einsum("bhqd,bhkd->bhqk", q, _for_each(heads, k)) * factor
    if mask is not None and mask.dtype is not torch.bool:
        scores = scores + mask
    closed = torch.zeros(scores.shape, dtype=torch.bool)
    if mask is not None and mask.dtype is torch.bool:
        closed = closed | ~mask
    if is_causal:
        closed = closed | torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    powers = torch.exp(scores - scores.detach().amax(-1, keepdim=True)).masked_fill(closed, 0.0)
    total = powers.sum(-1, keepdim=True)
    weights = powers / torch.where(total == 0, 1.0, total)
    return torch.einsum("bhqk,bhkd->bhqd", weights, _for_each(heads, v))


def _for_each(heads: int, x: Tensor) -> Tensor:
    """Keys or values with a head for each of the queries'."""
    return x[:, [head * x.shape[1] // heads for head in range(heads)]]


def _open(*shape: int, first: bool = True) -> Input:
    """About half of the pairs; one at least for each query, unless some are to see nothing."""

    def make(generator: torch.Generator) -> torch.Tensor:
        mask = torch.rand(shape, generator=generator) < 0.5
        mask[..., 0] |= first
        return mask

    return Input(make, DataType.BOOL, grad=False)


def _row(name: str, *inputs: Input, **attributes: Any) -> Case:
    return Case("FlashAttention", inputs, _attended, attributes=attributes, domain=OWN, name=name,
                dtypes=FLOATS)  # fmt: skip


def _fixed(index: int, *shape: int) -> Input:
    """Queries (0), keys (1) or values (2) that do not depend on the generator."""

    def make(_: torch.Generator) -> Tensor:
        drawn: Tensor = normal(*shape).make(torch.Generator().manual_seed(index))
        return drawn

    return Input(make)


def _saved(which: str, *shape: int) -> Input:
    """What the operator leaves for its gradient, for the fixed queries, keys and values."""

    def make(generator: torch.Generator) -> Tensor:
        q, k, v = (_fixed(index, *shape).make(generator) for index in range(3))
        if which == "y":
            return _attended(q, k, v, is_causal=1)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(shape[-1])
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return torch.logsumexp(scores.masked_fill(ahead, -torch.inf), -1)

    return Input(make, None if which == "y" else DataType.FLOAT, grad=False)


def _grad(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any, **options: Any) -> Any:
    return pulled_back(lambda *given: _attended(*given, **options), [q, k, v], dy)


def grad_row(*shape: int) -> Case:
    """The gradient of causal attention."""
    state = [given([0]), given([0])]
    inputs = [normal(*shape), *(_fixed(index, *shape) for index in range(3)), None,
              _saved("y", *shape), _saved("logsumexp", *shape), *state]  # fmt: skip
    return Case("FlashAttentionGrad", inputs, _grad, {"is_causal": 1}, domain=OWN, outputs=3,
                dtypes=only(DataType.FLOAT, DataType.BFLOAT16), gradient=False)  # fmt: skip


def causal_row(*shape: int) -> Case:
    """Causal attention."""
    return _row("causal", *[normal(*shape) for _ in range(3)], is_causal=1)


_Q, _K, _V = normal(2, 3, 5, 8), normal(2, 3, 7, 8), normal(2, 3, 7, 6)
_SQUARE = [normal(2, 4, 6, 16), normal(2, 4, 6, 16), normal(2, 4, 6, 16)]

CASES = [
    _row("plain", *_SQUARE),
    causal_row(2, 4, 6, 16),
    _row("scale", _Q, _K, _V, scale=0.2),
    _row("causal-longer-keys", _Q, _K, _V, is_causal=1),
    _row("opened", _Q, _K, _V, _open(2, 1, 5, 7)),
    _row("opened-keys", *_SQUARE, _open(6)),
    _row("sees-nothing", *_SQUARE, _open(2, 4, 6, 6, first=False)),
    _row("added", *_SQUARE, normal(2, 4, 6, 6)),
    _row("added-broadcast", _Q, _K, _V, normal(3, 1, 7)),
    _row("shared-heads", normal(2, 4, 5, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 8), is_causal=1),
    _row("one-sample-of-keys", normal(2, 3, 5, 8), normal(1, 3, 7, 8), normal(2, 1, 7, 8)),
    _row("one-sample-of-values", normal(2, 3, 5, 8), normal(2, 1, 7, 8), normal(1, 3, 7, 8)),
    _row("one-sample-of-queries", normal(1, 1, 5, 8), _K, _V, _open(2, 1, 5, 7)),
    _row("one-query-for-a-mask", normal(1, 3, 1, 8), normal(1, 3, 7, 8), normal(1, 1, 7, 6),
         normal(2, 3, 5, 7)),
    grad_row(2, 3, 6, 16),
    _row("one-query", normal(1, 2, 1, 8), normal(1, 2, 9, 8), normal(1, 2, 9, 8)),
]  # fmt: skip
