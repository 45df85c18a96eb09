"""Optimizers: the rows of the table on other shapes, types and layouts, and what must hold."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.properties.judge import absolute, judge
from kernels.properties.strategies import Draw, Shape, floats, layouts, numbers, shapes
from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.optimizer.lamb import lamb_optimizer
from onnxtrain.kernels.optimizer.parameter import adam_optimizer, sgd_optimizer
from onnxtrain.kernels.optimizer.sequence import (
    adam_w_optimizer,
    inplace_clip_grad_norm,
    sgd_optimizer_v2,
)
from onnxtrain.testing.case import Case, Input
from onnxtrain.testing.table import table, trial_types

Tensor = torch.Tensor
OPERATORS = [
    "AdamOptimizer",
    "AdamWOptimizer",
    "InplaceClipGradNorm",
    "LambOptimizer",
    "SGDOptimizer",
    "SGDOptimizerV2",
]


def rows_of(op: str) -> list[Case]:
    """Rows of an operator whose values are drawn, so that there are more of them."""
    return [case for case in table() if case.op == op and not _is_fixed(case)]


def _is_fixed(case: Case) -> bool:
    """Whether a row's largest inputs have the same values for every seed."""
    pairs = zip(case.draw(0), case.draw(1), strict=True)
    return all(_flat(a).equal(_flat(b)) for a, b in pairs if a is not None)


def _flat(value: Any) -> Tensor:
    items = value if isinstance(value, list) else [value]
    return torch.cat([item.double().reshape(-1) for item in items])


def more(item: Input, index: int | None, shape: Shape, seed: int) -> Tensor:
    """Values of an input (or of one tensor of its list) for another shape."""
    generator = torch.Generator().manual_seed(seed)
    found: list[Tensor] = []
    while not found or sum(map(len, found)) < math.prod(shape):
        drawn = item.make(generator)
        found.append((drawn if index is None else drawn[index]).reshape(-1))
    return torch.cat(found)[: math.prod(shape)].reshape(shape)


@st.composite
def resized(draw: Draw, op: str) -> Case:
    """A row on other shapes: one for all tensors of a parameter."""
    case = draw(st.sampled_from(rows_of(op)))
    seed = draw(st.integers(0, 999))
    new: dict[tuple[int, ...], Shape] = {}
    inputs: list[Input | None] = []
    for item, value in zip(case.inputs, case.draw(), strict=True):
        if isinstance(value, list):
            sizes = _list_of_shapes(draw, new, len(value))
            longest = max(range(len(value)), key=lambda i: value[i].numel())
            made: Any = [more(item, longest, s, seed + i) for i, s in enumerate(sizes)]
        elif value is not None and value.numel() > 1:
            made = more(item, None, _renamed(draw, new, tuple(value.shape)), seed)
        else:
            inputs.append(item)
            continue
        inputs.append(dataclasses.replace(item, make=_giver(made)))
        seed += 1000
    return dataclasses.replace(case, inputs=inputs)


def _giver(made: Any) -> Any:
    return lambda generator: [t.clone() for t in made] if isinstance(made, list) else made.clone()


def _renamed(draw: Draw, new: dict[tuple[int, ...], Shape], old: Shape) -> Shape:
    if old not in new:
        # A tensor without elements has no norm to divide by; sizes of 0 are in the lists.
        new[old] = draw(shapes(smallest=1))
    return new[old]


def _list_of_shapes(draw: Draw, new: dict[Any, Any], count: int) -> list[Shape]:
    if "list" not in new:
        new["list"] = draw(st.lists(shapes(), min_size=1, max_size=5))
    return new["list"]  # type: ignore[no-any-return]


def _adam_terms(reference: Callable[..., Any]) -> Callable[..., Any]:
    """What may cancel: a weight's step and its decay, handed out as one sum, and weight and sum."""

    def terms(rate: Tensor, step: Tensor, weight: Tensor, *others: Any, **attributes: Any) -> Any:
        found = absolute(reference)(rate, step, weight, *others, **attributes)
        later, first, second, _, delta, *mixed = found
        size = weight.abs() + delta.abs()
        return later, first, second, size, delta, *([size] if mixed else [])

    return terms


@pytest.mark.parametrize("op", OPERATORS)
@given(data=st.data(), layout=layouts)
def test_rows_on_other_shapes(op: str, data: Any, layout: int, device: str) -> None:
    case = data.draw(resized(op))
    dtype = data.draw(st.sampled_from(trial_types(case)))
    terms = _adam_terms(case.reference) if op == "AdamOptimizer" else None
    weights = case.inputs[2] if terms else None
    work = None if weights is None else to_torch(weights.dtype or dtype)
    judge(case, dtype, device, layout, exact=False, terms=terms, work=work)


@st.composite
def parameters(draw: Draw, count: int) -> list[list[Tensor]]:
    """Weights, gradients and moments of some parameters."""
    sizes = draw(st.lists(shapes(), min_size=1, max_size=4))
    return [[draw(numbers(shape)) for shape in sizes] for _ in range(count)]


@given(arguments=parameters(4), step=st.integers(1, 50), rate=floats(0.0, 1.0))
def test_one_list_or_one_call_per_parameter(
    arguments: list[list[Tensor]], step: int, rate: float, device: str
) -> None:
    def lists() -> list[list[Tensor]]:
        w, g, m, v = ([t.to(device).clone() for t in items] for items in arguments)
        return [w, g, m, [t.abs() for t in v]]

    together, apart = lists(), lists()
    adam_w_optimizer(rate, step, *together)
    for weight, gradient, first, second in zip(*apart, strict=True):
        adam_w_optimizer(rate, step, [weight], [gradient], [first], [second])
    assert all(
        torch.equal(a, b)
        for x, y in zip(together, apart, strict=True)
        for a, b in zip(x, y, strict=True)
    )


@given(arguments=parameters(2), rate=floats(0.0, 4.0))
def test_gradient_descent_in_both_forms(
    arguments: list[list[Tensor]], rate: float, device: str
) -> None:
    weights, gradients = ([t.to(device) for t in items] for items in arguments)
    eta = torch.tensor(rate, dtype=torch.float64, device=device)
    one = [
        sgd_optimizer(eta, w, g, wanted=(True, True))
        for w, g in zip(weights, gradients, strict=True)
    ]
    moved = [w.clone() for w in weights]
    sgd_optimizer_v2(rate, moved, gradients)
    for w, g, new, (own, delta) in zip(weights, gradients, moved, one, strict=True):
        torch.testing.assert_close(own, new)
        torch.testing.assert_close(delta, -rate * g)
        torch.testing.assert_close(own, w + delta)


@given(arguments=parameters(1), most=floats(0.125, 8.0), factor=floats(0.25, 16.0))
def test_clipping(arguments: list[list[Tensor]], most: float, factor: float, device: str) -> None:
    gradients = [t.to(device) for t in arguments[0]]
    norm = float(_flat(gradients).norm())
    clipped = inplace_clip_grad_norm([g.clone() for g in gradients], max_norm=most)
    after = float(_flat(clipped).norm())
    assert after <= most * (1 + 1e-9)
    if norm < most * (1 - 1e-5):
        assert all(map(torch.equal, clipped, gradients))
    elif norm > 1e-3:
        # The direction stays, and beyond the bound the length does not matter.
        torch.testing.assert_close(_flat(clipped) * norm, _flat(gradients) * after)
        longer = inplace_clip_grad_norm([g * (1 + factor) for g in gradients], max_norm=most)
        torch.testing.assert_close(_flat(longer), _flat(clipped), rtol=1e-4, atol=1e-6)


@given(data=st.data(), shape=shapes(smallest=1), factor=floats(0.125, 8.0))
def test_the_scale_of_the_loss_does_not_matter(
    data: Any, shape: Shape, factor: float, device: str
) -> None:
    w, g, m, v = (data.draw(numbers(shape)).to(device) for _ in range(4))
    rate, count = (torch.tensor(n, device=device) for n in (0.125, 3))
    scale = torch.tensor(factor, dtype=torch.float64, device=device)
    wanted = (True,) * 5
    plain = adam_optimizer(rate, count, w, g, m, v.abs(), wanted=wanted)
    scaled = adam_optimizer(rate, count, w, g * factor, m, v.abs(), None, scale, wanted=wanted)
    torch.testing.assert_close(scaled[:4], plain[:4])
    group = (w, g * factor, m, v.abs(), None)
    lists: Any = {name: (0.5,) for name in ("alpha", "beta", "lambda_", "epsilon")}
    one = lamb_optimizer(
        None, None, None, rate, count, w, g, m, v.abs(), None, wanted=wanted, **lists
    )
    two = lamb_optimizer(None, scale, None, rate, count, *group, wanted=wanted, **lists)
    torch.testing.assert_close(one[1], two[1])


@given(data=st.data(), shape=shapes(smallest=1))
def test_a_false_signal_changes_nothing(data: Any, shape: Shape, device: str) -> None:
    w, g, m, v = (data.draw(numbers(shape)).to(device) for _ in range(4))
    rate, count = (torch.tensor(n, device=device) for n in (0.125, 3))
    no = torch.tensor(False, device=device)
    made = adam_optimizer(rate, count, w, g, m, v.abs(), None, None, None, no, wanted=(True,) * 5)
    for new, old in zip(made, (count, m, v.abs(), w), strict=False):
        assert torch.equal(new, old)  # type: ignore[arg-type]
