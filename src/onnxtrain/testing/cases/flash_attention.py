"""Rows of FlashAttention; its gradient operator is checked by the gradients of these."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, normal
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
    heads = [h * k.shape[1] // q.shape[1] for h in range(q.shape[1])]
    factor = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k[:, heads]) * factor
    closed = torch.zeros(scores.shape, dtype=torch.bool)
    if mask is not None and mask.dtype is torch.bool:
        closed = closed | ~mask
    elif mask is not None:
        scores = scores + mask
    if is_causal:
        closed = closed | torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    powers = torch.exp(scores - scores.detach().amax(-1, keepdim=True)).masked_fill(closed, 0.0)
    total = powers.sum(-1, keepdim=True)
    weights = powers / torch.where(total == 0, 1.0, total)
    return torch.einsum("bhqk,bhkd->bhqd", weights, v[:, heads])


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


_Q, _K, _V = normal(2, 3, 5, 8), normal(2, 3, 7, 8), normal(2, 3, 7, 6)
_SQUARE = [normal(2, 4, 6, 16), normal(2, 4, 6, 16), normal(2, 4, 6, 16)]

CASES = [
    _row("plain", *_SQUARE),
    _row("causal", *_SQUARE, is_causal=1),
    _row("scale", _Q, _K, _V, scale=0.2),
    _row("causal-longer-keys", _Q, _K, _V, is_causal=1),
    _row("opened", _Q, _K, _V, _open(2, 1, 5, 7)),
    _row("opened-keys", *_SQUARE, _open(6)),
    _row("sees-nothing", *_SQUARE, _open(2, 4, 6, 6, first=False)),
    _row("added", *_SQUARE, normal(2, 4, 6, 6)),
    _row("added-broadcast", _Q, _K, _V, normal(3, 1, 7)),
    _row("shared-heads", normal(2, 4, 5, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 8), is_causal=1),
    _row("one-query", normal(1, 2, 1, 8), normal(1, 2, 9, 8), normal(1, 2, 9, 8)),
]  # fmt: skip
