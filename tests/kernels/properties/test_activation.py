"""Activations and their gradients, element by element."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.properties.judge import judge
from kernels.properties.strategies import (
    Draw,
    float_types,
    floats,
    layouts,
    numbers,
    row,
    scalar,
    shapes,
    shares,
    truths,
)
from onnxtrain.kernels.activation.fake_quant import fake_quant
from onnxtrain.testing.case import Case
from onnxtrain.testing.case import given as fixed
from onnxtrain.types import DataType

Tensor = torch.Tensor


def gelu_slope(x: Tensor) -> Tensor:
    """Φ(x) + x·φ(x)."""
    density = torch.exp(-x * x / 2) / (2 * torch.pi) ** 0.5
    return (1 + torch.erf(x * 0.5**0.5)) / 2 + x * density


def fast_gelu_slope(x: Tensor) -> Tensor:
    """The derivative of x/2·(1 + tanh u), u = c·(x + 0.044715·x³)."""
    c = (2 / torch.pi) ** 0.5
    t = torch.tanh(c * (x + 0.044715 * x**3))
    return (1 + t) / 2 + x / 2 * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x)


def quick_gelu_slope(x: Tensor, alpha: float) -> Tensor:
    """s·(1 + αx·(1 - s))."""
    s = torch.sigmoid(alpha * x)
    return s * (1 + alpha * x * (1 - s))


GRADIENTS: dict[str, Callable[..., Tensor]] = {
    "ReluGrad": lambda dy, x: torch.where(x > 0, dy, 0.0),
    "SigmoidGrad": lambda dy, y: dy * (y * (1 - y)),
    "TanhGrad": lambda dy, y: dy * (1 - y * y),
    "LeakyReluGrad": lambda dy, y, alpha: torch.where(y > 0, dy, alpha * dy),
    "QuickGeluGrad": lambda dy, x, alpha: dy * quick_gelu_slope(x, alpha),
    "GeluGrad": lambda dy, x: dy * gelu_slope(x),
    "FastGeluGrad": lambda dy, x: dy * fast_gelu_slope(x),
}
OF_SHARES = {"SigmoidGrad", "TanhGrad"}
"""Gradients from an output that lies between bounds."""
BIASED: dict[str, Callable[..., Tensor]] = {
    "BiasGeluGrad_dX": lambda dy, x, b: dy * gelu_slope(x + b),
    "BiasFastGeluGrad_dX": lambda dy, x, b: dy * fast_gelu_slope(x + b),
}
FORWARD: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "Relu": ("", torch.relu),
    "Sigmoid": ("", torch.sigmoid),
    "Tanh": ("", torch.tanh),
    "LeakyRelu": ("", lambda x, alpha: torch.where(x >= 0, x, alpha * x)),
    "QuickGelu": ("com.microsoft", lambda x, alpha: x * torch.sigmoid(alpha * x)),
    "Gelu": ("com.microsoft", lambda x: x * (1 + torch.erf(x * 0.5**0.5)) / 2),
}
EXACT = {"ReluGrad", "SigmoidGrad", "TanhGrad", "LeakyReluGrad", "Relu", "LeakyRelu"}
"""Operators without functions that torch evaluates one way for many and another for one number."""
TERMS: dict[str, Callable[..., Tensor]] = {
    "Gelu": lambda x: x.abs(),
    "GeluGrad": lambda dy, x: dy.abs() * (1 + x.abs()),
    "FastGeluGrad": lambda dy, x: dy.abs() * (1 + x.abs()),
    "QuickGeluGrad": lambda dy, x, alpha: dy.abs() * (1 + (alpha * x).abs()),
    "BiasGeluGrad_dX": lambda dy, x, b: dy.abs() * (1 + x.abs() + b.abs()),
    "BiasFastGeluGrad_dX": lambda dy, x, b: dy.abs() * (1 + x.abs() + b.abs()),
}
"""Sizes of terms that cancel: for negative x, Φ(x) is the difference of two numbers near a half."""
WITH_ALPHA = {"LeakyReluGrad", "QuickGeluGrad", "LeakyRelu", "QuickGelu"}


@st.composite
def gradients(draw: Draw, op: str) -> Case:
    shape = draw(shapes())
    operand = draw(shares(shape) if op in OF_SHARES else numbers(shape, scale=2.0))
    attributes = {"alpha": draw(floats(0.0, 2.0))} if op in WITH_ALPHA else {}
    return row(op, [draw(numbers(shape)), operand], GRADIENTS[op], attributes=attributes)


@pytest.mark.parametrize("op", GRADIENTS)
@given(data=st.data(), dtype=float_types, layout=layouts)
def test_gradients(op: str, data: Any, dtype: DataType, layout: int, device: str) -> None:
    case = data.draw(gradients(op))
    judge(case, dtype, device, layout, exact=op in EXACT, terms=TERMS.get(op))


@pytest.mark.parametrize("op", BIASED)
@given(data=st.data(), shape=shapes(1), dtype=float_types, layout=layouts)
def test_gradients_with_a_bias(
    op: str, data: Any, shape: tuple[int, ...], dtype: DataType, layout: int, device: str
) -> None:
    inputs = [data.draw(numbers(s)) for s in (shape, shape, shape[-1:])]
    judge(row(op, inputs, BIASED[op]), dtype, device, layout, exact=False, terms=TERMS[op])


@pytest.mark.parametrize("op", FORWARD)
@given(data=st.data(), shape=shapes(), dtype=float_types, layout=layouts)
def test_functions(
    op: str, data: Any, shape: tuple[int, ...], dtype: DataType, layout: int, device: str
) -> None:
    domain, reference = FORWARD[op]
    attributes = {"alpha": data.draw(floats(0.0, 2.0))} if op in WITH_ALPHA else {}
    x = data.draw(numbers(shape, scale=2.0))
    case = row(op, [x], reference, domain=domain, attributes=attributes)
    judge(case, dtype, device, layout, exact=op in EXACT, terms=TERMS.get(op))


@st.composite
def fake_quants(draw: Draw) -> Case:
    low = draw(st.integers(-128, 0))
    high = draw(st.integers(1, 255))
    # A power of two, so that no type rounds x / scale across a half.
    step, zero = 2.0 ** draw(st.integers(-4, 3)), draw(st.integers(-3, 130))

    def reference(x: Tensor, scale: Tensor, zero_point: Tensor, **_: Any) -> tuple[Tensor, ...]:
        s, z = scale.double().reshape(()), zero_point.double().reshape(())
        q = torch.round(x.double() / s) + z
        y = (q.clamp(low, high) - z) * s
        return y, (q >= low) & (q <= high)

    inputs = [
        draw(numbers(draw(shapes()), scale=draw(st.sampled_from([1.0, 100.0])))),
        scalar(step, vector=draw(st.booleans())),
        scalar(float(zero), vector=draw(st.booleans())),
    ]
    attributes = {"quant_min": low, "quant_max": high}
    return row("FakeQuant", inputs, reference, attributes=attributes, outputs=2)


@given(case=fake_quants(), layout=layouts)
def test_fake_quant(case: Case, layout: int, device: str) -> None:
    judge(case, DataType.FLOAT, device, layout)


@given(data=st.data(), step=st.integers(-4, 3), zero=st.integers(0, 255))
def test_quantizing_twice_changes_nothing(data: Any, step: int, zero: int, device: str) -> None:
    x = data.draw(numbers(data.draw(shapes()), scale=10.0)).float().to(device)
    once, _ = fake_quant(x, 2.0**step, float(zero))
    twice, inside = fake_quant(once, 2.0**step, float(zero))
    assert torch.equal(once, twice)
    assert inside.all()


@given(data=st.data(), shape=shapes(), layout=layouts)
def test_fake_quant_grad(data: Any, shape: tuple[int, ...], layout: int, device: str) -> None:
    mask = fixed(data.draw(truths(shape)), DataType.BOOL)
    case = row(
        "FakeQuantGrad",
        [data.draw(numbers(shape)), mask],
        lambda dy, mask: torch.where(mask, dy, 0.0),
    )
    judge(case, DataType.FLOAT, device, layout)
