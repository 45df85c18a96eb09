"""Rows for normalizations and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, apart, given, normal, uniform
from onnxtrain.testing.cases import norm_group, norm_layer
from onnxtrain.types import MS, OWN, DataType

FLOAT = DataType.FLOAT
RUNNING_VARIANCE_DIFFERS = (0, 1, 3, 4)
"""Outputs of BatchNormInternal that do not depend on the provider."""


def _per_channel(x: Tensor, value: Tensor) -> Tensor:
    return value if x.ndim == 1 else value.reshape(1, -1, *[1] * (x.ndim - 2))


def _batch_axes(x: Tensor) -> list[int]:
    return [axis for axis in range(x.ndim) if axis != 1]


def _normalized(
    x: Tensor, scale: Tensor, b: Tensor, mean: Tensor, var: Tensor, epsilon: float
) -> Tensor:
    scale, b, mean, var = (_per_channel(x, t) for t in (scale, b, mean, var))
    return (x - mean) / (var + epsilon).sqrt() * scale + b


def _batch_norm(
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Any:
    if not training_mode:
        return _normalized(x, scale, b, mean, var, epsilon)
    axes = _batch_axes(x)
    now, spread = x.mean(axes).reshape(-1), x.var(axes, correction=0).reshape(-1)
    y = _normalized(x, scale, b, now, spread, epsilon)
    return y, mean * momentum + now * (1 - momentum), var * momentum + spread * (1 - momentum)


def _batch_norm_internal(*inputs: Tensor, epsilon: float = 1e-5, **attributes: Any) -> Any:
    attributes.setdefault("training_mode", 1)
    results = _batch_norm(*inputs, epsilon=epsilon, **attributes)
    if not attributes["training_mode"]:
        return results
    axes = _batch_axes(inputs[0])
    mean, var = inputs[0].mean(axes), inputs[0].var(axes, correction=0)
    return *results, mean.reshape(-1), (1 / (var + epsilon).sqrt()).reshape(-1)


def _batch_norm_7(*inputs: Tensor, **attributes: Any) -> Any:
    y, mean, var = _batch_norm(*inputs, training_mode=1, **attributes)
    axes = _batch_axes(inputs[0])
    return y, mean, var, inputs[0].mean(axes), inputs[0].var(axes, correction=0)


def _by_place(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The same with a channel for every place of a sample."""

    def flat(x: Tensor, *parameters: Tensor, spatial: int = 0, **attributes: Any) -> Any:
        results = reference(x.flatten(1), *(p.flatten() for p in parameters), **attributes)
        if isinstance(results, Tensor):
            return results.reshape(x.shape)
        y, *statistics = results
        return y.reshape(x.shape), *(s.reshape(x.shape[1:]) for s in statistics)

    return flat


def _batch_norm_grad(
    dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor, inverse: Tensor, *, epsilon: float
) -> tuple[Tensor, ...]:
    axes = _batch_axes(x)
    n = x.numel() // scale.numel()
    mean, r, s = (_per_channel(x, t) for t in (mean, inverse, scale))
    normal_x = (x - mean) * r
    db, ds = dy.sum(axes, keepdim=True), (dy * normal_x).sum(axes, keepdim=True)
    dx = s * r / n * (n * dy - db - normal_x * ds)
    return dx, ds.reshape(-1), db.reshape(-1)


def _batch_inputs(*shape: int, statistics: DataType | None = None) -> list[Input]:
    channels = shape[1] if len(shape) > 1 else 1
    mean, var = normal(channels), uniform(channels, low=0.5, high=2)
    if statistics is not None:
        mean, var = mean.typed(statistics), var.typed(statistics)
    return [
        normal(*shape, mean=0.5),
        normal(channels),
        normal(channels),
        mean.no_grad(),
        var.no_grad(),
    ]


_BATCH = [
    Case("BatchNormalization", _batch_inputs(*shape), _batch_norm, name=f"rank_{len(shape)}")
    for shape in ((4, 3), (4, 3, 5), (2, 3, 4, 5), (2, 2, 3, 2, 3))
]
_BATCH += [
    Case("BatchNormalization", _batch_inputs(2, 3, 4), _batch_norm, {"epsilon": 0.125}, opset=opset)
    for opset in (7, 9, 14)
]
_BATCH += [
    Case(
        "BatchNormalization",
        _batch_inputs(*shape),
        _batch_norm,
        {"training_mode": 1, "momentum": 0.75},
        outputs=3,
        opset=opset,
        gradient=False,
        name=f"training_rank_{len(shape)}",
    )
    for shape in ((6, 3), (4, 3, 5), (2, 3, 4, 5))
    for opset in (14, 15)
]
_BATCH += [
    Case(
        "BatchNormalization",
        _batch_inputs(3, 2, 4),
        _batch_norm_7,
        {"momentum": 0.875},
        outputs=5,
        opset=9,
        gradient=False,
        name="training",
    ),
    Case(
        "BatchNormalization",
        [normal(3, 2, 4), *(uniform(2, 4, low=0.5, high=2) for _ in range(4))],
        lambda x, scale, b, mean, var, spatial: (x - mean) / (var + 1e-5).sqrt() * scale + b,
        {"spatial": 0},
        opset=7,
        gradient=False,
        name="not_spatial",
    ),
    Case(
        "BatchNormalization",
        [normal(3, 2, 4), *(uniform(2, 4, low=0.5, high=2) for _ in range(4))],
        _by_place(_batch_norm_7),
        {"spatial": 0},
        outputs=5,
        opset=7,
        gradient=False,
        name="not_spatial_training",
    ),
    Case(
        "BatchNormalization",
        _batch_inputs(4, 3, 5, statistics=FLOAT),
        _batch_norm,
        {"training_mode": 1},
        outputs=3,
        gradient=False,
        name="float_statistics",
    ),
    *(
        Case(
            "BatchNormInternal",
            _batch_inputs(*shape),
            _batch_norm_internal,
            {"momentum": 0.75, "epsilon": 0.015625},
            domain=MS,
            outputs=5,
            compare=RUNNING_VARIANCE_DIFFERS,
            gradient=False,
            name=f"rank_{len(shape)}",
        )
        for shape in ((5,), (6, 3), (4, 3, 5), (2, 3, 4, 5), (2, 2, 3, 2, 3))
    ),
    Case(
        "BatchNormInternal",
        _batch_inputs(1, 3),
        _batch_norm_internal,
        {"epsilon": 0.125},
        domain=MS,
        outputs=5,
        compare=RUNNING_VARIANCE_DIFFERS,
        gradient=False,
        name="one_sample",
    ),
    Case(
        "BatchNormInternal",
        _batch_inputs(4, 3, 5, statistics=FLOAT),
        _batch_norm_internal,
        domain=MS,
        outputs=5,
        compare=RUNNING_VARIANCE_DIFFERS,
        gradient=False,
        name="float_statistics",
    ),
    Case(
        "BatchNormInternal",
        _batch_inputs(4, 3, 5),
        _batch_norm_internal,
        {"training_mode": 0},
        domain=MS,
        gradient=False,
        name="inference",
    ),
    Case(
        "BatchNormInternal",
        [normal(4, 2, 3), *(uniform(2, 3, low=0.5, high=2) for _ in range(4))],
        _by_place(_batch_norm_internal),
        {"momentum": 0.75},
        domain=MS,
        outputs=5,
        compare=RUNNING_VARIANCE_DIFFERS,
        gradient=False,
        name="by_place",
    ),
    Case(
        "BatchNormInternal",
        [normal(4, 2, 3), *(uniform(2, 3, low=0.5, high=2) for _ in range(4))],
        _by_place(_batch_norm_internal),
        {"training_mode": 0},
        domain=MS,
        gradient=False,
        name="by_place_inference",
    ),
    *(
        Case(
            "BatchNormalizationGrad",
            [normal(*shape), *_batch_inputs(*shape)[:2], *_batch_inputs(*shape)[3:]],
            _batch_norm_grad,
            {"epsilon": 1e-5},
            domain=MS,
            outputs=3,
            gradient=False,
            name=f"rank_{len(shape)}",
        )
        for shape in ((5,), (6, 3), (4, 3, 5), (2, 3, 4, 5))
    ),
]


def _relu_behind(*inputs: Any, **attributes: Any) -> tuple[Tensor, ...]:
    y, *others = _batch_norm_internal(*inputs, **attributes)
    return (y.relu(), *others)


def _shortcut(*inputs: Any, **attributes: Any) -> tuple[Tensor, ...]:
    y, *others = _batch_norm_internal(*inputs[:5], **attributes)
    return ((y + inputs[5]).relu(), *others)


def _relu_behind_grad(
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    mean: Tensor,
    inverse: Tensor,
    *,
    epsilon: float = 1e-5,
) -> tuple[Tensor, ...]:
    line = (x - _per_channel(x, mean)) * _per_channel(x, inverse * scale) + _per_channel(x, b)
    return _batch_norm_grad(torch.where(line > 0, dy, 0), x, scale, mean, inverse, epsilon=epsilon)


_BATCH += [
    Case("BatchNormRelu", _batch_inputs(*shape), _relu_behind, {"momentum": 0.75}, domain=OWN,
         outputs=5, compare=RUNNING_VARIANCE_DIFFERS, gradient=False, name=f"rank_{len(shape)}")
    for shape in ((6, 3), (2, 3, 4, 5))
]  # fmt: skip
_BATCH += [
    Case("BatchNormAddRelu", [*_batch_inputs(*shape), normal(*shape)], _shortcut,
         {"momentum": 0.75}, domain=OWN, outputs=5, compare=RUNNING_VARIANCE_DIFFERS,
         gradient=False, name=f"rank_{len(shape)}")
    for shape in ((6, 3), (2, 3, 4, 5))
]  # fmt: skip
_BATCH += [
    Case("BatchNormReluGrad", [normal(*shape), *_batch_inputs(*shape)], _relu_behind_grad,
         domain=OWN, outputs=3, gradient=False, name=f"rank_{len(shape)}")
    for shape in ((6, 3), (2, 3, 4, 5))
]  # fmt: skip


def _grouped(x: Tensor, scale: Tensor, bias: Tensor, groups: int, epsilon: float) -> Tensor:
    rows = x.reshape(x.shape[0], groups, -1)
    mean, var = rows.mean(-1, keepdim=True), rows.var(-1, correction=0, keepdim=True)
    y = ((rows - mean) / (var + epsilon).sqrt()).reshape(x.shape)
    return y * _per_channel(x, scale) + _per_channel(x, bias)


def _instance(x: Tensor, scale: Tensor, b: Tensor, epsilon: float = 1e-5) -> Tensor:
    return _grouped(x, scale, b, x.shape[1], epsilon)


def _group(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Tensor:
    size = x.shape[1] // scale.numel()
    scale, bias = scale.repeat_interleave(size), bias.repeat_interleave(size)
    return _grouped(x, scale, bias, num_groups, epsilon)


def _lrn(
    x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    channels = x.shape[1]
    sums = []
    for c in range(channels):
        first, last = max(0, c - (size - 1) // 2), min(channels, c + size // 2 + 1)
        sums.append(x[:, first:last].square().sum(1))
    return x / (bias + alpha / size * torch.stack(sums, 1)) ** beta


def _lp(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    return x / x.abs().pow(p).sum(axis, keepdim=True).pow(1 / p)


def _mean_variance(x: Tensor, axes: tuple[int, ...] = (0, 2, 3)) -> Tensor:
    mean, var = x.mean(axes, keepdim=True), x.var(axes, correction=0, keepdim=True)
    return (x - mean) / (var.sqrt() + 1e-9)


_OTHERS = [
    *(
        Case(
            "InstanceNormalization",
            [normal(*shape), normal(3), normal(3)],
            _instance,
            {"epsilon": 0.015625},
            opset=opset,
            name=f"rank_{len(shape)}",
        )
        for shape, opset in (((2, 3, 7), None), ((2, 3, 4, 5), None), ((2, 3, 4, 5), 7))
    ),
    *(
        Case(
            "GroupNormalization",
            [normal(2, 6, *places), normal(parameters), normal(parameters)],
            _group,
            {"num_groups": 3, "epsilon": 0.015625},
            opset=opset,
            name=f"rank_{len(places) + 2}",
        )
        for parameters, opset in ((3, 18), (6, 21), (6, None))
        for places in ((5,), (3, 4))
    ),
    *(
        Case("LRN", [normal(2, 7, 3, 4)], _lrn, {"size": size, **more}, opset=opset)
        for size, more, opset in (
            (3, {}, None),
            (4, {"alpha": 0.5, "beta": 0.625, "bias": 2.0}, None),
            (5, {"alpha": 0.5}, 7),
        )
    ),
    Case("LRN", [normal(2, 5, 6)], _lrn, {"size": 9, "alpha": 0.25}, name="wider_than_channels"),
    *(
        Case("LpNormalization", [apart(3, 4, 5)], _lp, {"axis": axis, "p": p}, opset=opset)
        for axis, p, opset in ((-1, 2, None), (1, 1, None), (0, 2, 7))
    ),
    Case(
        "LpNormalization",
        [given(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))],
        lambda x: torch.where(x == 0, 0.0, x / 5),
        gradient=False,
        name="zero",
    ),
    Case("MeanVarianceNormalization", [uniform(2, 3, 4, 5)], _mean_variance),
    *(
        Case(
            "MeanVarianceNormalization",
            [uniform(*shape)],
            lambda x: _mean_variance(x, tuple(range(x.ndim))[::2]),
            name=f"rank-{len(shape)}",
        )
        for shape in ((5,), (4, 3), (2, 3, 4))
    ),
    Case(
        "MeanVarianceNormalization", [uniform(2, 3, 4)], _mean_variance, {"axes": (0, 2)}, opset=9
    ),
]

CASES = [*_BATCH, *_OTHERS, *norm_group.CASES, *norm_layer.CASES]
