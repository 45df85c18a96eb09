"""Rows for optimizers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, given, normal, only, uniform
from onnxtrain.testing.cases import optimizer_groups
from onnxtrain.types import MS, OWN, DataType

FLOAT, FLOAT16, BFLOAT16 = DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16
WIDE = only(FLOAT, DataType.DOUBLE)
SHAPES = ((3, 4), (5,), (), (0, 2), (2, 1, 3))


def _list(make: Any, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> Input:
    """A sequence of tensors."""

    def draw(generator: torch.Generator) -> Any:
        return [make(*shape).make(generator) for shape in shapes]

    return Input(draw, grad=False)


def _squares(*shape: int) -> Input:
    return uniform(*shape, low=0.25, high=2)


def _adam_w(
    lr: Tensor,
    step: Tensor,
    weights: list[Tensor],
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    update_signal: Tensor | None = None,
    *,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 1e-2,
    correct_bias: int = 1,
    adam_mode: int = 0,
) -> tuple[Any, ...]:
    if update_signal is not None and not update_signal:
        return torch.zeros_like(step, dtype=torch.bool), weights, first, second
    rate, t = float(lr), int(step)
    c1, c2 = (1 - alpha**t, 1 - beta**t) if correct_bias else (1.0, 1.0)
    made: tuple[list[Tensor], ...] = ([], [], [])
    for w, g, m, v in zip(weights, gradients, first, second, strict=True):
        m, v = alpha * m + (1 - alpha) * g, beta * v + (1 - beta) * g * g
        if adam_mode:
            w = w - rate * c2**0.5 / c1 * m / (v.sqrt() + epsilon)
            w = w - rate * weight_decay * w
        else:
            w = w - rate * weight_decay * w
            w = w - rate * m / (c1 * (v.sqrt() / c2**0.5 + epsilon))
        for found, value in zip(made, (w, m, v), strict=True):
            found.append(value)
    return torch.ones_like(step, dtype=torch.bool), *made


# values that float attributes hold exactly
_EXACT: dict[str, Any] = {
    "alpha": 0.875,
    "beta": 0.96875,
    "weight_decay": 0.0625,
    "epsilon": 2**-10,
}
_SEQUENCES = [_list(normal), _list(normal), _list(normal), _list(_squares)]
_ADAM_W = [
    Case(
        "AdamWOptimizer",
        [given(rate, FLOAT), given(step), *_SEQUENCES, signal],
        _adam_w,
        {**_EXACT, **attributes},
        domain=MS,
        outputs=4,
        gradient=False,
        name=name,
    )
    for name, rate, step, signal, attributes in (
        ("torch", [0.125], [3], None, {}),
        ("first_step", 0.125, 1, None, {"adam_mode": 0}),
        ("transformers", [0.125], [3], None, {"adam_mode": 1}),
        ("no_decay", 0.125, [2], None, {"adam_mode": 1, "weight_decay": 0.0}),
        ("no_correction", [0.125], [3], None, {"adam_mode": 1, "correct_bias": 0}),
        ("signal", [0.125], [3], given([True]), {}),
        ("no_signal", [0.125], [3], given([False]), {}),
        ("no_signal_scalar", [0.125], 3, given(False), {"adam_mode": 1}),
    )
]
_ADAM_W += [
    Case(
        "AdamWOptimizer",
        [given([0.125], FLOAT), given([1]), *_SEQUENCES],
        _adam_w,
        domain=MS,
        outputs=4,
        dtypes=only(FLOAT),
        gradient=False,
        name="defaults",
    ),
    Case(
        "AdamWOptimizer",
        [given([0.125], FLOAT), given([2]), *_SEQUENCES],
        lambda *inputs, **attributes: _adam_w(*inputs, **attributes)[0],
        _EXACT,
        domain=MS,
        gradient=False,
        name="only_the_flag",
    ),
    *(
        Case(
            "AdamWOptimizer",
            [
                given([0.125], FLOAT),
                given([3]),
                *(item.typed(kind) for item, kind in zip(_SEQUENCES, kinds, strict=True)),
            ],
            _adam_w,
            {**_EXACT, "adam_mode": mode},
            domain=MS,
            outputs=4,
            gradient=False,
            name=f"mixed_{'_'.join(k.name.lower() for k in kinds)}_{mode}",
        )
        for mode in (0, 1)
        for kinds in ((FLOAT, FLOAT16, FLOAT, FLOAT), (FLOAT16, FLOAT16, FLOAT, FLOAT))
    ),
]


def _sgd(
    lr: Tensor, weights: list[Tensor], gradients: list[Tensor], signal: Tensor | None = None
) -> tuple[Any, ...]:
    updates = signal is None or bool(signal)
    rate = float(lr) if updates else 0.0
    made = [w - rate * g for w, g in zip(weights, gradients, strict=True)]
    return torch.full(lr.shape, updates), made


def _clip(gradients: list[Tensor], max_norm: float = 1.0, norm_type: str = "fro") -> list[Tensor]:
    factor = _factor(gradients, max_norm)
    return [g * factor for g in gradients]


def _factor(gradients: list[Tensor], max_norm: float = 1.0) -> Tensor:
    total = sum((g.square().sum() for g in gradients), torch.zeros(()))
    factor = torch.clamp(max_norm / (total.sqrt() + 1e-6), max=1.0)
    return torch.where(factor.isnan(), 1.0, factor)


_HUGE, _NAN = float("inf"), float("nan")


def _fixed(*values: list[float]) -> Input:
    def draw(generator: torch.Generator) -> Any:
        return [torch.tensor(value, dtype=torch.float64) for value in values]

    return Input(draw, grad=False)


_OTHERS = [
    *(
        Case(
            "SGDOptimizerV2",
            [given(rate, FLOAT), _list(normal), gradients, signal],
            _sgd,
            domain=MS,
            outputs=2,
            gradient=False,
            name=name,
        )
        for name, rate, gradients, signal in (
            ("plain", [0.125], _list(normal), None),
            ("scalar", 0.125, _list(normal), given(True)),
            ("no_signal", [0.125], _list(normal), given([False])),
            ("half_gradients", [0.125], _list(normal).typed(FLOAT16), None),
        )
    ),
    *(
        Case(
            "InplaceClipGradNorm",
            [gradients],
            _clip,
            attributes,
            domain=MS,
            gradient=False,
            name=name,
        )
        for name, gradients, attributes in (
            ("clips", _list(normal), {"max_norm": 0.5}),
            ("default", _list(normal), {}),
            ("below", _list(normal), {"max_norm": 1000.0, "norm_type": "fro"}),
            ("negative", _list(normal), {"max_norm": -2.0}),
            ("infinite", _fixed([1.0, _HUGE], [2.0]), {}),
            ("nan", _fixed([1.0, _NAN], [2.0]), {}),
            ("large", _fixed([300.0, 400.0], [1200.0]), {"max_norm": 2.0}),
        )
    ),
    *(
        Case(
            "ClipFactor",
            [gradients],
            _factor,
            attributes,
            domain=OWN,
            gradient=False,
            name=name,
        )
        for name, gradients, attributes in (
            ("clips", _list(normal), {"max_norm": 0.5}),
            ("default", _list(normal), {}),
            ("below", _list(normal), {"max_norm": 1000.0}),
            ("infinite", _fixed([1.0, _HUGE], [2.0]), {}),
            ("nan", _fixed([1.0, _NAN], [2.0]), {}),
        )
    ),
    *(
        Case(
            "SGDOptimizer",
            [given(rate, FLOAT), normal(*shape), normal(*shape)],
            lambda eta, w, g: (w - float(eta) * g, -float(eta) * g),
            domain=MS,
            outputs=2,
            gradient=False,
            name=f"rank_{len(shape)}",
        )
        for rate, shape in ((0.125, (3, 4)), ([0.5], ()), ([0.5], (0, 3)))
    ),
]


def _adam(
    r: Tensor,
    t: Tensor,
    w: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    mixed: Tensor | None = None,
    loss_scale: Tensor | None = None,
    norm: Tensor | None = None,
    signal: Tensor | None = None,
    *,
    alpha: float = 0.9,
    beta: float = 0.999,
    lambda_: float = 0.0,
    epsilon: float = 1e-8,
    max_norm_clip: float = 1.0,
    do_bias_correction: int = 1,
    weight_decay_mode: int = 0,
) -> tuple[Any, ...]:
    if signal is not None and not signal:
        outputs = (t, m, v, w, g, mixed)
        return outputs if mixed is not None else outputs[:5]
    scale = 1.0 if loss_scale is None else float(loss_scale)
    if norm is not None and float(norm) > scale * max_norm_clip:
        scale = float(norm) / max_norm_clip
    rate, step = float(r), int(t)
    g = g.to(w.dtype) / scale
    m, v = alpha * m.to(w.dtype) + (1 - alpha) * g, beta * v.to(w.dtype) + (1 - beta) * g * g
    correct = do_bias_correction and step > 0
    c1, c2 = (1 - alpha**step, 1 - beta**step) if correct else (1.0, 1.0)
    if weight_decay_mode:
        u = rate * c2**0.5 / c1 * m / (v.sqrt() + epsilon)
        delta = -u - rate * lambda_ * (w - u)
    else:
        delta = -rate * ((m / c1) / ((v / c2).sqrt() + epsilon) + lambda_ * w)
    outputs = (t + 1, m, v, w + delta, delta, w + delta)
    return outputs if mixed is not None else outputs[:5]


_ADAM_EXACT: dict[str, Any] = {"alpha": 0.875, "beta": 0.96875, "lambda": 0.0625, "epsilon": 2**-10}


def _adam_row(name: str, inputs: list[Input | None], dtypes: Any, **attributes: Any) -> Case:
    return Case(
        "AdamOptimizer",
        inputs,
        _adam,
        {**_ADAM_EXACT, **attributes},
        domain=MS,
        outputs=6 if len(inputs) > 6 and inputs[6] is not None else 5,
        dtypes=dtypes,
        gradient=False,
        name=name,
    )


def _adam_inputs(
    *,
    rate: Any = 0.125,
    step: Any = 3,
    weights: DataType | None = FLOAT,
    moments: DataType | None = FLOAT,
    gradient: DataType | None = None,
) -> list[Input | None]:
    def kind(item: Input, dtype: DataType | None) -> Input:
        return item if dtype is None else item.typed(dtype)

    return [
        given(rate, FLOAT),
        given(step),
        kind(normal(3, 4), weights),
        kind(normal(3, 4), gradient),
        kind(normal(3, 4), moments),
        kind(_squares(3, 4), moments),
    ]


_ALL_WIDE = {"weights": None, "moments": None}
_ANY = only(FLOAT, FLOAT16, BFLOAT16)
_SCALED = [given(4.0, FLOAT), given([16.0], FLOAT)]
_ADAM = [
    _adam_row("coupled", _adam_inputs(**_ALL_WIDE), WIDE),
    _adam_row("decoupled", _adam_inputs(**_ALL_WIDE, rate=[0.125]), WIDE, weight_decay_mode=1),
    _adam_row("vectors", _adam_inputs(**_ALL_WIDE, rate=[0.125], step=[1]), WIDE),
    _adam_row("step_zero", _adam_inputs(**_ALL_WIDE, step=[0]), WIDE),
    _adam_row("no_correction", _adam_inputs(**_ALL_WIDE), WIDE, do_bias_correction=0),
    _adam_row("any_gradient", _adam_inputs(), _ANY),
    _adam_row("any_moments", _adam_inputs(moments=None, gradient=FLOAT), _ANY),
    _adam_row("half", [*_adam_inputs(moments=None), normal(3, 4).typed(FLOAT16)], _ANY),
    _adam_row("brain", [*_adam_inputs(moments=None), normal(3, 4).typed(BFLOAT16)], _ANY),
    _adam_row("scaled", [*_adam_inputs(), None, given(4.0, FLOAT)], _ANY),
    _adam_row("clipped", [*_adam_inputs(), None, *_SCALED], _ANY, max_norm_clip=2.0),
    _adam_row("not_clipped", [*_adam_inputs(), None, *_SCALED], _ANY, max_norm_clip=8.0),
    _adam_row("norm_only", [*_adam_inputs(), None, None, given(16.0, FLOAT16)], _ANY),
    _adam_row("signal", [*_adam_inputs(), None, None, None, given(True)], _ANY),
    _adam_row("no_signal", [*_adam_inputs(), None, None, None, given([False])], _ANY),
    _adam_row(
        "no_signal_half",
        [*_adam_inputs(), normal(3, 4).typed(FLOAT16), None, None, given(False)],
        _ANY,
    ),
]

CASES = [*_ADAM_W, *_OTHERS, *_ADAM, *optimizer_groups.CASES]
