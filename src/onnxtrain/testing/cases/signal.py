"""Rows of the signal operators."""

from __future__ import annotations

import math
from typing import Any

import torch

from onnxtrain.testing.case import Case, given, normal
from onnxtrain.types import DataType

INT32 = DataType.INT32


def _dft(
    x: torch.Tensor,
    length: Any = None,
    axis: Any = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
    attribute_axis: int = -2,
) -> torch.Tensor:
    """The defining sum, with a matrix of powers of the root of unity."""
    place = (attribute_axis if axis is None else int(axis)) % x.ndim
    values = torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x[..., 0] + 0j
    values = values.movedim(place, -1)
    if onesided and inverse:
        count = 2 * (values.shape[-1] - 1) if length is None else int(length)
        mirrored = values[..., 1 : (count + 1) // 2].conj().flip(-1)
        values = torch.cat([values[..., : count // 2 + 1], mirrored], -1)
    count = values.shape[-1] if length is None else int(length)
    values = values[..., :count]
    values = torch.nn.functional.pad(values, (0, count - values.shape[-1]))
    steps = torch.arange(count)
    turns = (steps[:, None] * steps[None, :] % count).to(torch.float64) / count
    angle = 2 * math.pi * turns * (1 if inverse else -1)
    root = torch.polar(torch.ones_like(angle), angle).to(values.dtype)
    result = values @ root / (count if inverse else 1)
    if onesided and not inverse:
        result = result[..., : count // 2 + 1]
    result = result.movedim(-1, place)
    return result.real.unsqueeze(-1) if onesided and inverse else torch.view_as_real(result)


def _dft_17(x: torch.Tensor, length: Any = None, **attributes: int) -> torch.Tensor:
    return _dft(x, length, attribute_axis=attributes.pop("axis", 1), **attributes)


def _number(value: int) -> Any:
    return given(value, constant=True)


DFT = [
    Case("DFT", [normal(2, 6, 1)], _dft, name="real", gradient=False),
    Case("DFT", [normal(2, 5, 2)], _dft, name="complex", gradient=False),
    Case("DFT", [normal(2, 6, 3, 1), None, _number(1)], _dft, name="axis", gradient=False),
    Case("DFT", [normal(2, 6, 1), _number(4)], _dft, name="cut", gradient=False),
    Case("DFT", [normal(2, 6, 2), _number(9)], _dft, name="filled", gradient=False),
    Case("DFT", [normal(2, 6, 1)], _dft, {"onesided": 1}, gradient=False),
    Case("DFT", [normal(2, 6, 2)], _dft, {"inverse": 1}, gradient=False),
    Case("DFT", [normal(2, 6, 1)], _dft, {"inverse": 1}, name="real-inverse", gradient=False),
    Case("DFT", [normal(2, 6, 1)], _dft_17, {"axis": 0}, opset=17, gradient=False),
    Case("DFT", [normal(2, 5, 3, 1)], _dft_17, {"onesided": 1}, opset=19, gradient=False),
]


def _stft(
    x: torch.Tensor, step: Any, window: Any = None, length: Any = None, *, onesided: int = 1
) -> torch.Tensor:
    """Each frame cut out, weighted and transformed."""
    x = x if x.ndim > 2 else x[..., None]
    size = len(window) if length is None else int(length)
    starts = range(0, x.shape[1] - size + 1, int(step))
    frames = torch.stack([x[:, start : start + size] for start in starts], 1)
    if window is not None:
        frames = frames * window[:, None]
    return _dft(frames, onesided=onesided)


STFT = [
    Case("STFT", [normal(2, 12, 1), _number(3), normal(5)], _stft, gradient=False),
    Case("STFT", [normal(1, 12, 1), _number(4), None, _number(4)], _stft, name="no-window",
         gradient=False),
    Case("STFT", [normal(2, 12, 2), _number(3), normal(6), _number(6)], _stft, {"onesided": 0},
         gradient=False),
]  # fmt: skip
WINDOWS = [
    Case(op, [given(size, kind, constant=True)], attributes=attributes, gradient=False)
    for op in ("HannWindow", "HammingWindow", "BlackmanWindow")
    for size, kind, attributes in (
        (10, INT32, {}),
        (9, DataType.INT64, {"periodic": 0}),
        (6, INT32, {"output_datatype": int(DataType.DOUBLE)}),
    )
]
MEL = [
    Case("MelWeightMatrix",
         [given(bins, INT32, constant=True), given(16, INT32, constant=True),
          given(8192, INT32, constant=True), given(0.0, DataType.FLOAT, constant=True),
          given(high, DataType.FLOAT, constant=True)], gradient=False, name=f"{bins}-bands")
    for bins, high in ((8, 4096.0), (3, 2000.0))
]  # fmt: skip

CASES: list[Case] = [*DFT, *STFT, *WINDOWS, *MEL]
