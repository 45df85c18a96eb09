"""Rows for layer and root mean square normalization and their gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.autograd import pulled_back
from onnxtrain.testing.case import Case, Input, normal, uniform
from onnxtrain.types import FLOATS, MS, OWN, DataType

FLOAT, DOUBLE = DataType.FLOAT, DataType.DOUBLE
STATISTICS = (
    (FLOAT, frozenset({FLOAT, DataType.FLOAT16, DataType.BFLOAT16})),
    (DOUBLE, frozenset({DOUBLE})),
)
"""Types of statistics, and of the data that they are kept for."""


def _axes(x: Tensor, axis: int) -> list[int]:
    return list(range(axis % x.ndim, x.ndim))


def _layer_norm(
    x: Tensor,
    scale: Tensor,
    b: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Tensor, ...]:
    mean = x.mean(_axes(x, axis), keepdim=True)
    inverse = 1 / (x.var(_axes(x, axis), correction=0, keepdim=True) + epsilon).sqrt()
    y = (x - mean) * inverse * scale
    return y if b is None else y + b, mean, inverse


def _layer_only(*inputs: Tensor, **attributes: Any) -> Tensor:
    return _layer_norm(*inputs, **attributes)[0]


def _rms_norm(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Tensor, ...]:
    inverse = 1 / (x.square().mean(_axes(x, axis), keepdim=True) + epsilon).sqrt()
    return x * inverse * scale, inverse


def _rms_only(*inputs: Tensor, **attributes: Any) -> Tensor:
    return _rms_norm(*inputs, **attributes)[0]


_LAYERS: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("last", (4, 3, 6), (6,), {}),
    ("axis", (4, 3, 6), (3, 6), {"axis": 1}),
    ("all", (4, 6), (4, 6), {"axis": 0, "epsilon": 0.125}),
    ("vector", (7,), (7,), {}),
    ("negative", (2, 3, 4, 5), (4, 5), {"axis": -2}),
]
_LAYER = [
    row
    for name, shape, sizes, attributes in _LAYERS
    for row in (
        Case(
            "LayerNormalization",
            [normal(*shape), normal(*sizes), normal(*sizes)],
            _layer_norm,
            attributes,
            outputs=3,
            name=f"{name}_statistics",
            gradient=False,
        ),
        Case(
            "LayerNormalization",
            [normal(*shape), normal(*sizes), normal(*sizes)],
            _layer_only,
            attributes,
            name=name,
        ),
        Case(
            "LayerNormalization",
            [normal(*shape), normal(*sizes)],
            _layer_only,
            attributes,
            opset=13,
            name=name,
        ),
        Case(
            "RMSNormalization", [normal(*shape), normal(*sizes)], _rms_only, attributes, name=name
        ),
        Case(
            "SimplifiedLayerNormalization",
            [normal(*shape), normal(*sizes)],
            _rms_norm,
            attributes,
            outputs=2,
            name=f"{name}_statistics",
            gradient=False,
        ),
        Case(
            "SimplifiedLayerNormalization",
            [normal(*shape), normal(*sizes)],
            _rms_only,
            attributes,
            name=name,
        ),
    )
]
_LAYER += [
    Case(
        "LayerNormalization",
        [normal(2, 3, 4), normal(4), normal(1, 3, 1)],
        _layer_only,
        {"axis": 1},
        name="broadcast_scale",
        gradient=False,
    ),
    Case(
        "LayerNormalization",
        [normal(4, 6), normal(6).typed(FLOAT), normal(6).typed(FLOAT)],
        _layer_norm,
        {"stash_type": DOUBLE.value},
        opset=13,
        outputs=3,
        name="mixed_types",
        gradient=False,
    ),
    Case(
        "SimplifiedLayerNormalization",
        [normal(4, 6), normal(6).typed(DataType.FLOAT16)],
        _rms_norm,
        outputs=2,
        name="mixed_types",
        gradient=False,
    ),
]


def _skip(
    x: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    epsilon: float = 1e-12,
) -> tuple[Tensor, ...]:
    total = x + skip if bias is None else x + skip + bias
    return *_layer_norm(total, gamma, beta, epsilon=epsilon), total


def _skip_simplified(
    x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None, epsilon: float = 1e-12
) -> tuple[Tensor, ...]:
    total = x + skip if bias is None else x + skip + bias
    y, inverse = _rms_norm(total, gamma, epsilon=epsilon)
    return y, total.mean(-1, keepdim=True), inverse, total


_SKIP = [
    Case(
        op,
        [normal(2, 4, 6), normal(*skip), *parameters],
        reference,
        {"epsilon": 0.015625},
        domain=MS,
        outputs=4,
        gradient=False,
        name=name,
    )
    for op, reference, optional in (
        ("SkipLayerNormalization", _skip, 2),
        ("SkipSimplifiedLayerNormalization", _skip_simplified, 1),
    )
    for name, skip, parameters in (
        ("all", (2, 4, 6), [normal(6) for _ in range(optional + 1)]),
        ("least", (2, 4, 6), [normal(6)]),
        ("broadcast", (4, 6), [normal(6)]),
    )
]
_SKIP += [
    Case(
        "SkipSimplifiedLayerNormalization",
        [normal(2, 4, 6), normal(*skip), normal(6)],
        lambda x, skip, gamma, epsilon: _skip_simplified(x, skip, gamma, epsilon=epsilon)[0],
        {"epsilon": 0.015625},
        domain=MS,
        gradient=False,
        name=name,
    )
    for name, skip in (("alone", (2, 4, 6)), ("alone_broadcast", (4, 6)))
]


def _layer_grad(
    dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor, inverse: Tensor, *, axis: int = -1, **_: Any
) -> tuple[Tensor, ...]:
    """The formula; mean and inverse need not be those of x."""
    axes = _axes(x, axis)
    rows = list(range(axis % x.ndim))
    mean, inverse = (t.reshape(*x.shape[: len(rows)], *[1] * len(axes)) for t in (mean, inverse))
    normal_x, inner = (x - mean) * inverse, dy * scale
    dx = inner - inner.mean(axes, keepdim=True)
    dx = inverse * (dx - normal_x * (inner * normal_x).mean(axes, keepdim=True))
    sums = [(t.sum(rows) if rows else t) for t in (dy * normal_x, dy)]
    return dx, *sums


def _rms_grad(
    dy: Tensor, x: Tensor, scale: Tensor, inverse: Tensor, *, axis: int = -1, **_: Any
) -> tuple[Tensor, ...]:
    axes = _axes(x, axis)
    rows = list(range(axis % x.ndim))
    inverse = inverse.reshape(*x.shape[: len(rows)], *[1] * len(axes))
    normal_x, inner = x * inverse, dy * scale
    dx = inverse * (inner - normal_x * (inner * normal_x).mean(axes, keepdim=True))
    return dx, (dy * normal_x).sum(rows) if rows else dy * normal_x


def _invertible_grad(
    dy: Tensor, y: Tensor, scale: Tensor, bias: Tensor, inverse: Tensor, *, axis: int = -1
) -> tuple[Tensor, ...]:
    rows = y.shape[: axis % y.ndim]
    inverse = inverse.reshape(*rows, *[1] * (y.ndim - len(rows)))
    x = (y - bias) / scale
    return _layer_grad(dy, x / inverse, scale, torch.zeros_like(inverse), inverse, axis=axis)


def _grads(
    name: str, shape: tuple[int, ...], sizes: tuple[int, ...], **attributes: Any
) -> list[Case]:
    """Rows of all three gradients; statistics come as [rows...] or flat."""
    rows = shape[: len(shape) - len(sizes)]
    found = []
    for stat in (rows, (math.prod(rows),)):
        for kind, dtypes in STATISTICS:
            mean = normal(*stat).typed(kind)
            inverse = uniform(*stat, low=0.5, high=2).typed(kind)
            dy, x, weights = normal(*shape), normal(*shape), uniform(*sizes, low=0.5, high=2)
            options: dict[str, Any] = {
                "domain": MS,
                "dtypes": dtypes,
                "gradient": False,
                "name": f"{name}_{len(stat)}",
            }
            for op, inputs, reference, outputs in (
                ("LayerNormalizationGrad", [dy, x, weights, mean, inverse], _layer_grad, 3),
                ("SimplifiedLayerNormalizationGrad", [dy, x, weights, inverse], _rms_grad, 2),
                (
                    "InvertibleLayerNormalizationGrad",
                    [dy, x, weights, normal(*sizes), inverse],
                    _invertible_grad,
                    3,
                ),
            ):
                found.append(Case(op, inputs, reference, attributes, outputs=outputs, **options))
    return found


def _added(*shape: int, summed: bool = False, **attributes: Any) -> Case:
    """The gradient with another one added to that of the input, and the sums of that."""
    rows, size = shape[:-1], shape[-1]
    inputs = [normal(*shape), normal(*shape), uniform(size, low=0.5, high=2)]
    inputs += [normal(*rows, 1).typed(FLOAT), uniform(*rows, 1, low=0.5, high=2).typed(FLOAT)]

    def reference(*values: Any, **given: Any) -> tuple[Tensor, ...]:
        dx, *others = _layer_grad(*values[:5], **given)
        total = dx + values[5]
        sums = total.reshape(-1, size).sum(0)
        return (total, *others, sums) if summed else (total, *others)

    return Case("LayerNormalizationGradAdd", [*inputs, normal(*shape)], reference, attributes,
                domain=OWN, outputs=4 if summed else 3, name="summed" if summed else "",
                dtypes=FLOATS - {DOUBLE}, gradient=False)  # fmt: skip


def _rms_added(*shape: int, **attributes: Any) -> Case:
    rows, size = shape[:-1], shape[-1]
    inputs = [normal(*shape), normal(*shape), uniform(size, low=0.5, high=2)]
    inputs += [uniform(*rows, 1, low=0.5, high=2).typed(FLOAT), normal(*shape)]

    def reference(*values: Any, **given: Any) -> tuple[Tensor, ...]:
        dx, dscale = _rms_grad(*values[:4], **given)
        return dx + values[4], dscale

    return Case("SimplifiedLayerNormalizationGradAdd", inputs, reference, attributes,
                domain=OWN, outputs=2, dtypes=FLOATS - {DOUBLE}, gradient=False)  # fmt: skip


_ADDED = [_added(6, 8), _added(2, 3, 5, axis=2), _added(2, 3, 4, summed=True)]
_ADDED += [_rms_added(6, 8), _rms_added(2, 3, 5, axis=2)]

_GRADS = [
    row
    for name, shape, sizes, attributes in _LAYERS
    for row in _grads(name, shape, sizes, **{k: v for k, v in attributes.items() if k == "axis"})
]


def _known(index: int) -> Input:
    """Data that does not depend on the generator (0), or its float mean (1) or inverse (2)."""

    def make(generator: torch.Generator) -> Tensor:
        x = normal(4, 6).make(torch.Generator().manual_seed(7))
        return _layer_norm(x, torch.ones(()))[index] if index else x

    return Input(make, FLOAT if index else None, grad=False)


def _known_rms() -> Input:
    return Input(lambda g: _rms_norm(_known(0).make(g), torch.ones(()))[1], FLOAT, grad=False)


_BROADCAST_SCALE = [
    Case(
        "LayerNormalizationGrad",
        [normal(4, 3, 6), normal(4, 3, 6), normal(6), normal(4), uniform(4, low=0.5, high=2)],
        lambda dy, x, scale, *rest, axis: tuple(
            t if i == 0 else t.sum(0)
            for i, t in enumerate(_layer_grad(dy, x, scale, *rest, axis=axis))
        ),
        {"axis": 1},
        domain=MS,
        outputs=3,
        dtypes=frozenset({FLOAT, DOUBLE}),
        gradient=False,
        name="broadcast_scale",
    ),
    Case(
        "SimplifiedLayerNormalizationGrad",
        [normal(4, 3, 6), normal(4, 3, 6), normal(3, 1), uniform(4, low=0.5, high=2)],
        lambda dy, x, scale, inverse, axis: tuple(
            t if i == 0 else t.sum(1, keepdim=True)
            for i, t in enumerate(_rms_grad(dy, x, scale, inverse, axis=axis))
        ),
        {"axis": 1},
        domain=MS,
        outputs=2,
        dtypes=frozenset({FLOAT, DOUBLE}),
        gradient=False,
        name="broadcast_scale",
    ),
]

# float statistics are too coarse for the gradient of double data
_COARSE = [
    Case(
        "LayerNormalizationGrad",
        [normal(4, 6), _known(0), normal(6), _known(1), _known(2)],
        lambda dy, x, scale, *_: pulled_back(_layer_only, [x, scale, torch.zeros_like(scale)], dy),
        domain=MS,
        outputs=3,
        dtypes=frozenset({DOUBLE}),
        gradient=False,
        name="coarse_statistics",
    ),
    Case(
        "SimplifiedLayerNormalizationGrad",
        [normal(4, 6), _known(0), normal(6), _known_rms()],
        lambda dy, x, scale, *_: pulled_back(_rms_only, [x, scale], dy),
        domain=MS,
        outputs=2,
        dtypes=frozenset({DOUBLE}),
        gradient=False,
        name="coarse_statistics",
    ),
]

CASES = [*_LAYER, *_SKIP, *_ADDED, *_GRADS, *_BROADCAST_SCALE, *_COARSE]
