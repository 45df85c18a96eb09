"""Rows for operators that were several before a step was planned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, booleans, given, integers, normal
from onnxtrain.types import FLOATS, OWN


def _beside(*parts: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.cat(parts, -1)
    return y, y.reshape(-1, y.shape[-1]).sum(0)


def _dropped(
    dy: Tensor, mask: Tensor, ratio: Any = None, training: Any = None
) -> tuple[Tensor, Tensor]:
    rate = 0.5 if ratio is None else float(ratio)
    dx = dy if training is not None and not bool(training) else dy * mask / (1 - rate)
    return dx, dx.reshape(-1, dx.shape[-1]).sum(0)


def _rows(indices: Tensor, dy: Tensor, base: Tensor) -> Tensor:
    width = base.shape[1:].numel()
    places = indices.reshape(-1) % base.shape[0]
    return (base.reshape(len(base), width).index_add(0, places, dy.reshape(-1, width))).reshape(
        base.shape
    )


def _chain(name: str, steps: str, reference: Any, *inputs: Input) -> Case:
    return Case("Elementwise", list(inputs), reference, {"steps": steps}, domain=OWN, name=name,
                gradient=False)  # fmt: skip


def _swish(x: Tensor, up: Tensor, steps: str) -> Tensor:
    return x * torch.sigmoid(x) * up


_CHAINS = [
    _chain("relu", "Add 0 1; Relu 2", lambda a, b, steps: torch.relu(a + b), normal(3, 4),
           normal(3, 4)),
    _chain("gradients", "Sum 0 1 2; ReluGrad 4 3",
           lambda a, b, c, x, steps: torch.where(x > 0, a + b + c, 0.0), *[normal(2, 3)] * 4),
    _chain("spread", "Mul 0 1; Sub 3 2; Neg 4", lambda a, b, c, steps: -(a * b - c),
           normal(2, 3, 4), normal(3, 4), normal()),
    _chain("clip", "Less 0 2; Greater 0 3; Or 4 5; Not 6; Where 7 1 2",
           lambda x, dy, low, high, steps: torch.where((x >= low) & (x <= high), dy, low),
           normal(3, 4), normal(3, 4), given(-0.5), given(0.75)),
    _chain("choose", "GreaterOrEqual 0 1; LessOrEqual 0 2; And 3 4; Where 5 0 1; Mul 6 0",
           lambda x, a, b, steps: torch.where((x >= a) & (x <= b), x, a) * x, normal(3, 4),
           normal(3, 4), normal(3, 4)),
    _chain("swish", "QuickGelu:1.0 0; Mul 2 1", _swish, normal(3, 4), normal(3, 4)),
]  # fmt: skip
_QUARTER = given(0.25, constant=True)
CASES = [
    *_CHAINS,
    Case("ConcatSum", [normal(2, 3, 4)] * 3, _beside, domain=OWN, outputs=2, dtypes=FLOATS),
    Case("ConcatSum", [normal(5, 2), normal(5, 3)], _beside, domain=OWN, outputs=2, name="uneven"),
    Case("DropoutGradSum", [normal(2, 3, 4), booleans(2, 3, 4)], _dropped, domain=OWN, outputs=2,
         dtypes=FLOATS),
    Case("DropoutGradSum", [normal(6, 4), booleans(6, 4), _QUARTER, given(True)], _dropped,
         domain=OWN, outputs=2, name="ratio"),
    Case("DropoutGradSum", [normal(6, 4), booleans(6, 4), _QUARTER, given(False)], _dropped,
         domain=OWN, outputs=2, name="off"),
    Case("GatherGradAdd", [integers(2, 3, high=5), normal(2, 3, 4), normal(5, 4)], _rows,
         domain=OWN, dtypes=FLOATS),
    Case("GatherGradAdd", [given([-1, 0, -1]), normal(3, 2, 2), normal(4, 2, 2)], _rows,
         domain=OWN, name="negative"),
    Case("GatherGradAdd", [integers(0, high=5), normal(0, 4), normal(5, 4)], _rows, domain=OWN,
         name="none"),
]  # fmt: skip
