"""Rows for the gradients of pools, which are told the shape of what was pooled."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.autograd import pulled_back
from onnxtrain.testing.case import Case, Input, apart, given, normal, shape_input
from onnxtrain.testing.cases import pool
from onnxtrain.types import OWN, DataType


def _average_grad(dy: Tensor, shape: Tensor, **attributes: Any) -> Tensor:
    x = torch.zeros(shape.tolist(), dtype=dy.dtype)
    [grad] = pulled_back(lambda x: pool.average_pool(x, **attributes), [x], dy)
    return grad


def _max_grad(
    dy: Tensor, indices: Tensor, shape: Tensor, storage_order: int = 0, **_: Any
) -> Tensor:
    """Sum of the gradients whose index is an element's own."""
    sizes: list[int] = shape.tolist()
    places = torch.arange(int(shape.prod())).reshape(sizes)
    if storage_order:
        inside = list(range(2, len(sizes)))
        turned = [*sizes[:2], *reversed(sizes[2:])]
        places = places.reshape(turned).permute(0, 1, *reversed(inside))
    match = (places.reshape(-1, 1) == indices.reshape(1, -1)).to(dy.dtype)
    summed: Tensor = match @ dy.reshape(-1)
    return summed.reshape(sizes)


def _drawn(case: Case) -> Tensor:
    [x] = case.draw()
    assert x is not None
    return x


def _indices(case: Case) -> Input:
    """The indices that a row of MaxPool gives."""

    def make(generator: torch.Generator) -> Tensor:
        return pool.max_pool(_drawn(case), **case.attributes)[1]

    return Input(make, DataType.INT64, grad=False)


_NEWEST = [case for case in pool.CASES if case.opset is None]
_AVERAGE = [
    Case(
        "AveragePoolGrad",
        [
            normal(*pool.average_pool(_drawn(case), **case.attributes).shape),
            shape_input(*_drawn(case).shape),
        ],
        _average_grad,
        case.attributes,
        gradient=False,
        name=case.name,
    )
    for case in _NEWEST
    if case.op == "AveragePool"
]
_MAX = [
    Case(
        "MaxPoolGrad",
        [
            normal(*pool.max_only(_drawn(case), **case.attributes).shape),
            _indices(case),
            shape_input(*_drawn(case).shape),
        ],
        _max_grad,
        case.attributes,
        gradient=False,
        name=case.name,
    )
    for case in _NEWEST
    if case.op == "MaxPool" and case.outputs == 2
]
_FED = [
    Case(
        "AveragePoolGrad",
        [normal(2, 3, 4), given([2, 3, 5])],
        _average_grad,
        {"kernel_shape": (2,)},
        gradient=False,
        name="shape_at_run_time",
    ),
    Case(
        "MaxPoolGrad",
        [normal(1, 1, 3), given([[[1, 1, 4]]]), given([1, 1, 5])],
        _max_grad,
        gradient=False,
        name="shape_at_run_time",
    ),
]
_PLANES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "apart": ((2, 3, 6, 4), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    "padded": ((2, 3, 5, 6), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "many_channels": ((1, 17, 3, 4), {"kernel_shape": (2, 3)}),
    "dilated": ((1, 2, 7, 6), {"kernel_shape": (2, 3), "dilations": (3, 2)}),
}


def _starts(x: Tensor) -> Tensor:
    """Where planes begin."""
    batch, channels, *sizes = x.shape
    return torch.arange(batch * channels).reshape(batch, channels, 1, 1) * math.prod(sizes)


def _in_planes(x: Tensor, **attributes: Any) -> tuple[Tensor, Tensor]:
    y, indices = pool.max_pool(x, **attributes)
    return y, indices - _starts(x)


def _in_planes_grad(dy: Tensor, places: Tensor, shape: Tensor, **_: Any) -> Tensor:
    return _max_grad(dy, places + _starts(torch.empty(shape.tolist())), shape)


def _places(shape: tuple[int, ...], window: dict[str, Any]) -> Input:
    """The places that MaxPoolInPlanes gives."""

    def make(generator: torch.Generator) -> Tensor:
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        return _in_planes(x, **window)[1]

    return Input(make, DataType.INT32, grad=False)


_IN_PLANES = [
    Case("MaxPoolInPlanes", [apart(*shape, gap=1.0)], _in_planes, window, OWN, outputs=2,
         gradient=False, name=name)
    for name, (shape, window) in _PLANES.items()
] + [
    Case("MaxPoolInPlanesGrad",
         [normal(*pool.max_only(torch.zeros(shape), **window).shape), _places(shape, window),
          shape_input(*shape)],
         _in_planes_grad, window, OWN, gradient=False, name=name)
    for name, (shape, window) in _PLANES.items()
]  # fmt: skip

CASES = [*_AVERAGE, *_MAX, *_FED, *_IN_PLANES]
