"""Rows for multiplication by constants."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, given, normal
from onnxtrain.types import FLOATS, MS, DataType


def _scale(x: Tensor, s: Tensor, *, scale_down: int = 0) -> Tensor:
    factor = s.to(x.dtype).reshape(())
    return x / factor if scale_down else x * factor


def _batch_scale(x: Tensor, **scales: float) -> tuple[Tensor, ...]:
    return tuple(x * s for s in scales.values())


def _scaled_sum(x0: Tensor, x1: Tensor, x2: Tensor | None = None, **scales: float) -> Tensor:
    xs = [x0, x1] if x2 is None else [x0, x1, x2]
    terms = [x * s for x, s in zip(xs, scales.values(), strict=True)]
    return torch.stack(terms).sum(0)


def _mixed_scale(s: Tensor, *xs: Tensor, to: int, fuse_outputs: int = 0) -> tuple[Tensor, ...]:
    scaled = [x * s for x in xs]
    return (torch.cat([y.reshape(-1) for y in scaled]),) if fuse_outputs else tuple(scaled)


def _mixed_row(name: str, inputs: list[Input], to: DataType, fuse: int = 0) -> Case:
    return Case(
        "MixedPrecisionScale",
        [given(0.25, DataType.FLOAT), *inputs],
        _mixed_scale,
        {"to": int(to), "fuse_outputs": fuse},
        domain=MS,
        outputs=1 if fuse else len(inputs),
        name=name,
        gradient=False,
    )


_TWO = {"scale_0": 0.25, "scale_1": 1.5}
_THREE = {**_TWO, "scale_2": -2.0}

CASES: list[Case] = [
    *(
        Case("Scale", [normal(3, 4), given(value, dtype)], _scale, attributes, domain=MS, name=name)
        for name, value, dtype, attributes in [
            ("up", 0.5, DataType.FLOAT, {}),
            ("vector", [4.0], DataType.FLOAT, {}),
            ("down", 3.0, DataType.FLOAT16, {"scale_down": 1}),
            ("down-int64", 6, DataType.INT64, {"scale_down": 1}),
            ("up-int32", 3, DataType.INT32, {}),
            ("up-double", 1.75, DataType.DOUBLE, {}),
        ]
    ),
    Case("BatchScale", [normal(3, 5)], _batch_scale, _TWO, domain=MS, outputs=2, gradient=False),
    Case("BatchScale", [normal(3, 5)], _batch_scale, _THREE, domain=MS, outputs=3, gradient=False),
    Case("ScaledSum", [normal(3, 5), normal(3, 5)], _scaled_sum, _TWO, domain=MS),
    Case("ScaledSum", [normal(3, 5) for _ in range(3)], _scaled_sum, _THREE, domain=MS),
    *(_mixed_row(f"to-{to.name.lower()}", [normal(3, 4)], to) for to in sorted(FLOATS)),
    _mixed_row("several", [normal(3, 4), normal(5), normal()], DataType.FLOAT),
    _mixed_row("fused", [normal(3, 4), normal(5), normal()], DataType.FLOAT16, fuse=1),
]
