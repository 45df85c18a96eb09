"""Rows for TensorBoard summaries; the references write protobuf's bytes by hand."""

from __future__ import annotations

import bisect
import itertools
import math
import struct
import sys
from typing import Any

import numpy as np
from torch import Tensor

from onnxtrain.testing.case import Case, booleans, given, normal, text
from onnxtrain.types import BOOL, FLOATS, MS

DOUBLE, BYTES = 1, 2
"""Wire types: eight bytes, or a length and so many bytes."""


def _varint(number: int) -> bytes:
    if number < 128:
        return bytes([number])
    return bytes([number & 127 | 128]) + _varint(number >> 7)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | BYTES) + _varint(len(content)) + content


def _tag(tag: str) -> bytes:
    return _field(1, tag.encode()) if tag else b""


def _record(*values: bytes) -> Any:
    return np.array(b"".join(_field(1, value) for value in values), object)


def _scalar(x: Tensor, *, tags: Any) -> Any:
    tagged = zip(tags, x.reshape(-1).tolist(), strict=True)
    return _record(*(_tag(tag) + b"\x15" + struct.pack("<f", v) for tag, v in tagged))


def _buckets(values: list[float]) -> list[tuple[float, int]]:
    """Limits and counts; of buckets without values in a row only the last is kept."""
    steps = itertools.accumulate(itertools.repeat(1.1), lambda a, b: a * b, initial=1e-12)
    positive = [*itertools.takewhile(lambda limit: limit < 1e20, steps), sys.float_info.max]
    limits = [-limit for limit in reversed(positive)] + positive
    counts = dict.fromkeys(range(len(limits)), 0)
    for value in values:
        counts[min(bisect.bisect_right(limits, value), len(limits) - 1)] += 1
    every = [*zip(limits, counts.values(), strict=True), (0.0, 0)]
    following = [count for _, count in every[1:]] + [1]
    return [pair for pair, after in zip(every, following, strict=True) if pair[1] or after]


def _histogram(x: Tensor, *, tag: str) -> Any:
    values = [value for value in x.reshape(-1).tolist() if math.isfinite(value)]
    total, squares = 0.0, 0.0
    for value in values:
        total, squares = total + value, squares + value * value
    largest = sys.float_info.max
    ends = min(values, default=largest), max(values, default=-largest)
    numbers = enumerate((*ends, float(len(values)), total, squares), start=1)
    head = b"".join(_varint(n << 3 | DOUBLE) + struct.pack("<d", v) for n, v in numbers if v)
    limits, counts = zip(*_buckets(values), strict=True)
    lists = [struct.pack(f"<{len(column)}d", *column) for column in (limits, counts)]
    return _record(_tag(tag) + _field(5, head + _field(6, lists[0]) + _field(7, lists[1])))


def _text(x: Any, *, tag: str) -> Any:
    sizes = b"".join(_field(2, b"\x08" + _varint(n) if n else b"") for n in x.shape)
    shape = _field(2, sizes) if x.shape else b""
    words = b"".join(_field(8, word.encode()) for word in x.reshape(-1))
    tensor = _field(8, b"\x08\x07" + shape + words)
    return _record(_tag(tag) + tensor + _field(9, _field(1, _field(1, b"text"))))


def _joined(*summaries: Any) -> Any:
    return np.array(b"".join(s.reshape(-1)[0].encode() for s in summaries), object)


def _row(op: str, inputs: list[Any], reference: Any, name: str = "", **attributes: Any) -> Case:
    dtypes = FLOATS | BOOL
    return Case(op, inputs, reference, attributes, MS, dtypes=dtypes, gradient=False, name=name)


_SPECIAL = given([float("nan"), float("inf"), -1.0, 0.0, -0.0, 1e-13])
CASES = [
    _row("SummaryScalar", [normal()], _scalar, tags=["loss"]),
    _row("SummaryScalar", [normal(2, 2)], _scalar, tags=["a", "b", "", "naïve"]),
    _row("SummaryScalar", [booleans(2)], _scalar, tags=["yes", "no"]),
    *(
        _row("SummaryHistogram", [value], _histogram, name, tag="weights")
        for name, value in {
            "many": normal(40, 5),
            "one": normal(),
            "empty": normal(0, 3),
            "special": _SPECIAL,
        }.items()
    ),
    *(
        _row("SummaryText", [text(words)], _text, name, tag="notes")
        for name, words in {
            "scalar": "word",
            "matrix": [["a", "b"], ["", "été"]],
            "empty": [],
        }.items()
    ),
    _row("SummaryMerge", [text("\n\x08\n\x01a\x15\x00\x00\x00?")], _joined, "one"),
    _row(
        "SummaryMerge",
        [text("\n\x08\n\x01a\x15\x00\x00\x00?"), text(["\n\x08\n\x01b\x15\x00\x00\x00\x00"])],
        _joined,
        "two",
    ),
]
