"""Rows for optimizers whose inputs are groups of tensors: LAMB and ONNX's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, given, normal, only, uniform
from onnxtrain.types import MS, TRAINING, DataType

FLOAT, FLOAT16, BFLOAT16 = DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16
WIDE = only(FLOAT, DataType.DOUBLE)
INF = float("inf")


def _lamb(
    signal: Tensor | None,
    loss_scale: Tensor | None,
    norm: Tensor | None,
    r: Tensor,
    step: Tensor | None,
    *groups: Tensor | None,
    alpha: list[float],
    beta: list[float],
    lambda_: list[float],
    epsilon: list[float],
    max_norm_clip: list[float] | None = None,
    ratio_min: float = -INF,
    ratio_max: float = INF,
    do_bias_correction: int = 1,
) -> list[Any]:
    if signal is not None and not signal:
        return [step, *groups]
    t = 0 if step is None else int(step)
    outputs: list[Any] = [None if step is None else step + 1]
    for index in range(len(groups) // 5):
        w, g, m, v, mixed = groups[5 * index : 5 * index + 5]
        assert w is not None and g is not None and m is not None and v is not None
        most = (max_norm_clip or [1.0] * 1024)[index]
        scale = 1.0 if loss_scale is None else float(loss_scale)
        if norm is not None and float(norm) > scale * most:
            scale = float(norm) / most
        kinds, g = (g.dtype, m.dtype), g.to(w.dtype) / scale
        a, b = alpha[index], beta[index]
        c1, c2 = (1 - a**t, 1 - b**t) if do_bias_correction and t > 0 else (1.0, 1.0)
        new_m, new_v = a * m + (1 - a) * g, b * v + (1 - b) * g * g
        d = lambda_[index] * w + (new_m / c1) / ((new_v / c2).sqrt() + epsilon[index])
        keep = d.isfinite()
        d = torch.where(keep, d, 0.0).to(kinds[0]).to(w.dtype)
        new_m, new_v = (
            torch.where(keep, new_m, m.to(w.dtype)),
            torch.where(keep, new_v, v.to(w.dtype)),
        )
        rate = float(r)
        if w.norm() != 0 and d.norm() != 0:
            rate *= max(ratio_min, min(ratio_max, float(w.norm() / d.norm())))
        moved = w - rate * d
        delta = torch.where(moved.isfinite(), -rate * d, 0.0)
        new = torch.where(moved.isfinite(), moved, w)
        outputs += [new, delta, new_m, new_v, None if mixed is None else new]
    return outputs


def _group(
    *shape: int,
    weights: Input | None = None,
    gradient: Input | None = None,
    moments: DataType | None = None,
    mixed: DataType | None = None,
) -> list[Input | None]:
    first, second = normal(*shape), uniform(*shape, low=0.25, high=2)
    if moments is not None:
        first, second = first.typed(moments), second.typed(moments)
    return [
        weights or normal(*shape),
        gradient or normal(*shape),
        first,
        second,
        None if mixed is None else normal(*shape).typed(mixed),
    ]


def _lamb_row(
    name: str,
    groups: list[list[Input | None]],
    *,
    head: tuple[Input | None, Input | None, Input | None] = (None, None, None),
    rate: Any = 0.125,
    step: Any = 3,
    dtypes: frozenset[DataType] = WIDE,
    **attributes: Any,
) -> Case:
    count = len(groups)
    tensors = [item for group in groups for item in group]
    absent = [] if step is not None else [0]
    absent += [5 * i + 5 for i, group in enumerate(groups) if group[4] is None]
    return Case(
        "LambOptimizer",
        [*head, given(rate, FLOAT), None if step is None else given(step), *tensors],
        _lamb,
        {
            "alpha": [0.875, 0.75, 0.5][:count],
            "beta": [0.96875, 0.875, 0.75][:count],
            "lambda": [0.0625, 0.0, 0.5][:count],
            "epsilon": [2**-10, 2**-8, 2**-6][:count],
            **attributes,
        },
        domain=MS,
        outputs=1 + 5 * count,
        empty=absent,
        dtypes=dtypes,
        gradient=False,
        name=name,
    )


_NARROW = only(FLOAT, FLOAT16, BFLOAT16)
_FLOAT_WEIGHTS = {"weights": normal(3, 4).typed(FLOAT)}
_INFINITE = given(torch.tensor([1.0, INF, float("nan"), 0.5]))
_THREE = [_group(3, 4), _group(5), _group()]
_LAMB = [
    _lamb_row("one", [_group(3, 4)]),
    _lamb_row("groups", _THREE, rate=[0.125], step=[1]),
    _lamb_row("no_step", _THREE, step=None),
    _lamb_row("no_correction", [_group(6)], do_bias_correction=0),
    _lamb_row("ratio_max", [_group(6)], ratio_max=0.25),
    _lamb_row("ratio_min", [_group(6)], ratio_min=2.0),
    _lamb_row("zero_weights", [_group(6, weights=given(torch.zeros(6)))], ratio_max=0.25),
    _lamb_row("not_finite", [_group(4, gradient=_INFINITE)]),
    _lamb_row(
        "clip", _THREE, head=(None, None, given(16.0, FLOAT)), max_norm_clip=[4.0, 32.0, 1.0]
    ),
    _lamb_row(
        "scale", _THREE, head=(given(True), given([4.0], FLOAT), given(16.0)), dtypes=only(FLOAT)
    ),
    _lamb_row("no_signal", _THREE, head=(given([False]), None, None)),
    *(
        _lamb_row(
            f"mixed_{'float' if moments else 'same'}",
            [_group(3, 4, **_FLOAT_WEIGHTS, moments=moments, mixed=FLOAT16)],
            dtypes=_NARROW,
        )
        for moments in (FLOAT, None)
    ),
]


def _kinds(inputs: tuple[Tensor, ...], count: int) -> list[tuple[Tensor, ...]]:
    size = len(inputs) // count
    return [inputs[i::size] for i in range(size)]


def _by_kind(results: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    return [value for kind in zip(*results, strict=True) for value in kind]


def _adagrad(
    r: Tensor,
    t: Tensor,
    *inputs: Tensor,
    norm_coefficient: float = 0.0,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
) -> list[Tensor]:
    found = []
    for x, g, h in _kinds(inputs, 3):
        g = g + norm_coefficient * x
        h = h + g * g
        found.append((x - float(r) / (1 + int(t) * decay_factor) * g / (h.sqrt() + epsilon), h))
    return _by_kind(found)


def _adam(
    r: Tensor,
    t: Tensor,
    *inputs: Tensor,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
) -> list[Tensor]:
    rate, step = float(r), int(t)
    if step > 0:
        rate *= (1 - beta**step) ** 0.5 / (1 - alpha**step)
    found = []
    for x, g, v, h in _kinds(inputs, 4):
        g = g + norm_coefficient * x
        v, h = alpha * v + (1 - alpha) * g, beta * h + (1 - beta) * g * g
        found.append(((1 - norm_coefficient_post) * (x - rate * v / (h.sqrt() + epsilon)), v, h))
    return _by_kind(found)


def _momentum(
    r: Tensor,
    t: Tensor,
    *inputs: Tensor,
    norm_coefficient: float,
    alpha: float,
    beta: float,
    mode: str,
) -> list[Tensor]:
    found = []
    for x, g, v in _kinds(inputs, 3):
        g = g + norm_coefficient * x
        v = alpha * v + (beta if int(t) > 0 else 1.0) * g
        step = g + alpha * v if mode == "nesterov" else v
        found.append((x - float(r) * step, v))
    return _by_kind(found)


def _preview(op: str, reference: Any, kinds: int, step: int, **attributes: Any) -> Case:
    shapes = ((3, 4), (5,))
    return Case(
        op,
        [
            given(0.125, FLOAT),
            given(step),
            *(
                (
                    uniform(*shape, low=0.25, high=2) if kind == kinds - 1 else normal(*shape)
                ).no_grad()
                for kind in range(kinds)
                for shape in shapes
            ),
        ],
        reference,
        attributes,
        domain=TRAINING,
        outputs=(kinds - 1) * len(shapes),
        gradient=False,
        name=f"step_{step}_{attributes.get('mode', '')}",
    )


_EXACT = {"norm_coefficient": 0.125, "alpha": 0.875, "beta": 0.75}
_PREVIEW = [
    _preview("Adagrad", _adagrad, 3, 0, epsilon=0.0625),
    _preview("Adagrad", _adagrad, 3, 2, norm_coefficient=0.125, decay_factor=0.5, epsilon=0.0625),
    _preview("Adam", _adam, 4, 0, **_EXACT, epsilon=0.0625),
    _preview("Adam", _adam, 4, 3, **_EXACT, norm_coefficient_post=0.25, epsilon=0.0625),
    *(
        _preview("Momentum", _momentum, 3, step, **_EXACT, mode=mode)
        for step in (0, 2)
        for mode in ("standard", "nesterov")
    ),
]

CASES = [*_LAMB, *_PREVIEW]
