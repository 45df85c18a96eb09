"""Rows of com.microsoft's maximum pooling with a mask."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, apart, given, only
from onnxtrain.types import MS, DataType

INT32 = DataType.INT32
LOWEST = torch.finfo(torch.float32).min
Ranges = list[range]


def _axis(size: int, kernel: int, step: int, pads: tuple[int, int], word: str) -> Ranges:
    """The places of each window along one axis."""
    before, behind = pads
    if word.startswith("SAME"):
        missing = (-(-size // step) - 1) * step + kernel - size
        before = -(-missing // 2) if word == "SAME_LOWER" else missing // 2
        behind = missing - before
    starts = range(-before, size + behind - kernel + 1, step)
    return [range(max(start, 0), min(start + kernel, size)) for start in starts]


def _largest(x: Tensor, mask: Tensor, places: Sequence[range]) -> Tensor:
    """Row by row, each up to the first place that is closed."""
    taken = []
    for row in itertools.product(*places[:-1]):
        for place in places[-1]:
            if mask[row][place] == 0:
                break
            taken.append(x[row][place])
    return torch.stack(taken).amax() if taken else x.new_tensor(LOWEST)


def _pooled(
    x: Tensor,
    m: Tensor,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] = (),
    pads: Sequence[int] = (),
    auto_pad: str = "NOTSET",
) -> Tensor:
    """Window by window of each plane."""
    sizes = x.shape[2:]
    rank = len(sizes)
    ends = [*pads] or [0] * (2 * rank)
    facts = zip(sizes, kernel_shape, strides or [1] * rank, ends[:rank], ends[rank:], strict=True)
    windows = [_axis(z, k, s, (low, high), auto_pad) for z, k, s, low, high in facts]
    planes = zip(x.flatten(0, 1), m.expand(x.shape).flatten(0, 1), strict=True)
    found = [
        _largest(plane, mask, places)
        for plane, mask in planes
        for places in itertools.product(*windows)
    ]
    return torch.stack(found).reshape(*x.shape[:2], *map(len, windows))


def _mask(*shape: int, ends: Sequence[int]) -> Input:
    """Ones up to a place of the last axis, another one for each sample and channel in turn."""
    flags = torch.zeros(shape, dtype=torch.int64)
    for plane, end in zip(flags.flatten(0, 1), itertools.cycle(ends), strict=False):
        plane[..., :end] = 1
    return given(flags, INT32)


def _pool(name: str, shape: Sequence[int], mask: Input, kernel: Sequence[int], **more: Any) -> Case:
    attributes = {"kernel_shape": tuple(kernel), **more}
    return Case("MaxpoolWithMask", [apart(*shape), mask], _pooled, attributes, MS, name=name)


_HOLES = given([[[1, 1, 0, 1, 1, 1, 2]]], INT32)
CASES: list[Case] = [
    _pool("line", (2, 3, 7), _mask(1, 1, 7, ends=[5]), [3], strides=(2,)),
    _pool("holes", (1, 2, 7), _HOLES, [4], strides=(3,)),
    _pool("padded", (1, 2, 7), _mask(1, 1, 7, ends=[6]), [4], strides=(2,), pads=(2, 1)),
    _pool("plane", (1, 2, 4, 5), _mask(1, 1, 4, 5, ends=[4]), [2, 3]),
    _pool("volume", (1, 1, 3, 4, 4), _mask(1, 1, 3, 4, 4, ends=[3]), [2, 2, 3], strides=(1, 2, 1)),
    _pool("samples", (2, 2, 5), _mask(2, 2, 5, ends=[5, 4, 3, 5]), [3], strides=(2,)),
    _pool("channels", (2, 2, 3, 4), _mask(1, 2, 3, 4, ends=[4, 2]), [3, 3]),
    *(
        _pool(word, (1, 2, 5, 4), _mask(1, 1, 5, 4, ends=[3]), [2, 3], auto_pad=word,
              strides=(2, 1))
        for word in ("NOTSET", "SAME_LOWER", "SAME_UPPER", "VALID")
    ),
    dataclasses.replace(
        _pool("closed", (1, 1, 6), _mask(1, 1, 6, ends=[3]), [2], strides=(2,)),
        dtypes=only(DataType.FLOAT),
        gradient=False,
    ),
]  # fmt: skip
