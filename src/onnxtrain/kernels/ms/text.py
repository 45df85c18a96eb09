"""Hashes and repetitions of tokens."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onnxtrain.kernels.precision import as_signed
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS, DataType

_MASK = 0xFFFFFFFF
_LONG = frozenset({DataType.INT64})


@kernel("MurmurHash3", domain=MS, text=True)
def murmur_hash3(x: Any, *, positive: int = 1, seed: int = 0) -> Tensor:
    """The 32-bit hash of the bytes of each element."""
    if isinstance(x, Tensor):
        width = x.dtype.itemsize
        bits = as_signed(x) if not x.is_floating_point() else x.contiguous()
        kind = torch.int64 if width == 8 else torch.int32
        wide = bits.view(kind).to(torch.int64)
        words = [(wide >> (32 * i)) & _MASK for i in range(width // 4)]
        hashes = _finished(_mixed(torch.full_like(wide, seed & _MASK), words), width)
    else:
        found = [_of_bytes(str(item).encode(), seed) for item in x.reshape(-1)]
        hashes = torch.tensor(found, dtype=torch.int64).reshape(x.shape)
    signed = torch.where(hashes > 0x7FFFFFFF, hashes - (1 << 32), hashes).to(torch.int32)
    return signed.view(torch.uint32) if positive else signed


def _rotated(x: Any, by: int) -> Any:
    return ((x << by) | (x >> (32 - by))) & _MASK


def _scrambled(word: Any) -> Any:
    return (_rotated((word * 0xCC9E2D51) & _MASK, 15) * 0x1B873593) & _MASK


def _mixed(state: Any, words: Any) -> Any:
    for word in words:
        state = (_rotated(state ^ _scrambled(word), 13) * 5 + 0xE6546B64) & _MASK
    return state


def _finished(state: Any, length: int) -> Any:
    state = state ^ length
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & _MASK
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & _MASK
    return state ^ (state >> 16)


def _of_bytes(data: bytes, seed: int) -> int:
    whole = len(data) // 4 * 4
    words = np.frombuffer(data[:whole], "<u4").tolist()
    state = _mixed(seed & _MASK, words)
    if rest := data[whole:]:
        state ^= _scrambled(int.from_bytes(rest, "little"))
    return int(_finished(state, len(data)))


@kernel("NGramRepeatBlock", domain=MS, Tid=_LONG, T=FLOATS)
def ngram_repeat_block(input_ids: Tensor, scores: Tensor, *, ngram_size: int) -> Tensor:
    """scores, and -∞ for every token that would repeat a run of ``ngram_size`` tokens."""
    length = input_ids.shape[1]
    if length < ngram_size:
        return scores.clone()
    runs = input_ids.unfold(1, ngram_size, 1)
    end = input_ids[:, length - ngram_size + 1 :].unsqueeze(1)
    repeats = (runs[..., :-1] == end).all(-1)
    vocabulary = scores.shape[1]
    target = torch.where(repeats, runs[..., -1], vocabulary)
    banned = torch.zeros(len(scores), vocabulary + 1, dtype=torch.bool, device=scores.device)
    return scores.masked_fill(banned.scatter(1, target, True)[:, :-1], -math.inf)
