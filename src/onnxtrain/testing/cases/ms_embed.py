"""Rows of embeddings of com.microsoft: quantized tables, positions as angles, words."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, given, integers, normal, only
from onnxtrain.testing.cases.ms_attention import INT8, INT32, UINT8, WIDE, ints
from onnxtrain.testing.cases.ms_group_query import _embed
from onnxtrain.types import FLOATS, MS, DataType


def _turned(angles: Tensor, *halves: Tensor) -> tuple[Tensor, ...]:
    """Each head on its own."""

    def one(x: Tensor, rotated: Tensor) -> Tensor:
        heads = zip(x.unbind(1), rotated.unbind(1), strict=True)
        return torch.stack([h * angles.cos() + r * angles.sin() for h, r in heads], 1)

    return one(*halves[:2]), one(*halves[2:])


def _gemma(name: str, angles: Input, keys: int, dtypes: frozenset[DataType] = FLOATS) -> Case:
    queries, others = normal(2, 2, 3, 4), normal(2, keys, 3, 4)
    return Case("GemmaRotaryEmbedding", [angles, queries, queries, others, others], _turned,
                domain=MS, outputs=2, dtypes=dtypes, name=name)  # fmt: skip


_ANGLES = normal(2, 3, 4, scale=2.0)
ROTARY = [
    _gemma("heads", _ANGLES, 2),
    _gemma("fewer-keys", _ANGLES, 1),
    _gemma("angles-in-float", _ANGLES.typed(DataType.FLOAT), 2,
           only(DataType.BFLOAT16, DataType.FLOAT16)),
]  # fmt: skip


def _quantized(
    ids: Tensor,
    segments: Tensor | None,
    words: Tensor,
    places: Tensor,
    kinds: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None,
    *numbers: Tensor | None,
    epsilon: float = 1e-12,
) -> tuple[Tensor, ...]:
    def real(q: Tensor, index: int) -> Tensor:
        scale, zero = numbers[index], numbers[index + 5]
        assert scale is not None and zero is not None
        return (q.to(scale.dtype) - zero) * scale

    tables = real(words, 0), real(places, 1), None if kinds is None else real(kinds, 2)
    y, lengths, _ = _embed(
        ids, segments, *tables, real(gamma, 3), real(beta, 4), mask, epsilon=epsilon
    )
    return y, lengths


def _row(name: str, dtype: DataType, segments: bool, mask: Input | None, **attributes: Any) -> Case:
    low = -100 if dtype == INT8 else 0
    zero = low + 90

    def table(*shape: int) -> Input:
        return integers(*shape, low=low, high=low + 200, dtype=dtype)

    ids, kinds = integers(2, 3, high=9, dtype=INT32), integers(2, 3, high=2, dtype=INT32)
    scales: list[Input | None] = [given(s) for s in (0.02, 0.015, 0.01, 0.012, 0.008)]
    zeros: list[Input | None] = [given(zero + i, dtype) for i in range(5)]
    tables = [table(9, 6), table(5, 6), table(2, 6) if segments else None, table(6), table(6)]
    if not segments:
        scales[2] = zeros[2] = None
    inputs = [ids, kinds if segments else None, *tables, mask, *scales, *zeros]
    return Case("QEmbedLayerNormalization", inputs, _quantized, attributes, MS, outputs=2,
                dtypes=WIDE, name=name)  # fmt: skip


QUANTIZED = [
    _row("signed", INT8, True, ints([[1, 1, 0], [1, 1, 1]])),
    _row("unsigned", UINT8, True, None, epsilon=0.125),
    _row("no-segments", UINT8, False, ints([[1, 0, 0], [1, 1, 0]])),
]


def _word(letters: list[int], w: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """One window after the other."""
    width = w.shape[2]
    if letters[0] <= 0:
        return b.new_zeros(b.shape)
    last = max(sum(letter > 0 for letter in letters), width) - width
    table = dict(enumerate(c))
    rows = [table.get(letter, torch.zeros_like(c[0])) for letter in letters]
    sums = [
        torch.einsum("mkd,kd->m", w[:, 0], torch.stack(rows[start : start + width])) + b
        for start in range(last + 1)
    ]
    return torch.stack(sums).tanh().amax(0)


def _words(sequence: Tensor, *weights: Tensor, **sizes: int) -> Tensor:
    return torch.stack([_word(letters, *weights) for letters in sequence.tolist()])


def _spelled(name: str, words: list[list[int]], width: int, **sizes: int) -> Case:
    weights = [normal(4, 1, width, 3), normal(4), normal(6, 3)]
    return Case("WordConvEmbedding", [ints(words), *weights], _words, sizes, MS, name=name)


WORDS = [
    _spelled("padded", [[1, 2, 3, 4, 0], [4, 3, 5, 0, 0], [5, 4, 3, 2, 1]], 2),
    _spelled("short", [[1, 0, 0, 0], [2, 3, 0, 0], [4, 0, 2, 5]], 3),
    _spelled("unknown", [[1, 9, -1, 5], [7, 7, 7, 0]], 2),
    _spelled("sizes", [[5, 1, 1]], 1, embedding_size=4, conv_window_size=1, char_embedding_size=3),
    _spelled("none", [[1, 2, 3], [0, 0, 0], [0, 4, 5]], 2),
]

CASES: list[Case] = [*ROTARY, *QUANTIZED, *WORDS]
