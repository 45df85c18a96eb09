"""Quotients, scales and questions about whole tensors."""

import math
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.properties.judge import judge
from kernels.properties.strategies import (
    Draw,
    Shape,
    broadcast_to,
    flags,
    float_types,
    floats,
    layouts,
    numbers,
    row,
    scalar,
    shapes,
    truths,
)
from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.math.arithmetic import div_grad
from onnxtrain.kernels.math.finite import is_all_finite
from onnxtrain.testing.case import Case
from onnxtrain.testing.case import given as fixed
from onnxtrain.types import DataType

Tensor = torch.Tensor
factors = st.one_of(floats(0.125, 16.0), floats(-16.0, -0.125))


def _away_from_zero(x: Tensor) -> Tensor:
    return torch.where(x < 0, x - 0.5, x + 0.5)


@st.composite
def quotients(draw: Draw) -> Case:
    out = draw(shapes(0, 4))
    a, b = (draw(numbers(draw(broadcast_to(out)))) for _ in range(2))
    # What neither has in full is not in the result.
    dy = draw(numbers(torch.broadcast_shapes(a.shape, b.shape)))

    def reference(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return (dy / b).sum_to_size(a.shape), (-dy * a / b**2).sum_to_size(b.shape)

    return row("DivGrad", [dy, a, _away_from_zero(b)], reference, outputs=2)


@given(case=quotients(), dtype=float_types, layout=layouts)
def test_div_grad(case: Case, dtype: DataType, layout: int, device: str) -> None:
    def terms(dy: Tensor, a: Tensor, b: Tensor) -> Any:
        return case.reference(dy.abs(), -a.abs(), b.abs())  # type: ignore[misc]

    judge(case, dtype, device, layout, exact=False, terms=terms)


@given(data=st.data(), shape=shapes(), factor=factors)
def test_div_grad_of_scaled_operands(data: Any, shape: Shape, factor: float, device: str) -> None:
    dy, a, b = (data.draw(numbers(shape)).to(device) for _ in range(3))
    b = _away_from_zero(b)
    da, db = div_grad(dy, a, b)
    scaled_a, scaled_b = div_grad(dy, a, b * factor)
    assert da is not None and db is not None and scaled_a is not None and scaled_b is not None
    torch.testing.assert_close(scaled_a * factor, da)
    torch.testing.assert_close(scaled_b * factor**2, db)


@given(
    data=st.data(), shape=shapes(), factor=factors, down=flags, dtype=float_types, layout=layouts
)
def test_scale(
    data: Any,
    shape: Shape,
    factor: float,
    down: int,
    dtype: DataType,
    layout: int,
    device: str,
) -> None:
    case = row(
        "Scale",
        [data.draw(numbers(shape)), scalar(factor, vector=data.draw(st.booleans()))],
        lambda x, s, scale_down: (
            x / s.reshape(()).double() if scale_down else x * s.reshape(()).double()
        ),
        attributes={"scale_down": down},
    )
    judge(case, dtype, device, layout)


@given(
    data=st.data(),
    shape=shapes(),
    weights=st.lists(factors, min_size=2, max_size=3),
    dtype=float_types,
    layout=layouts,
)
def test_batch_scale(
    data: Any, shape: Shape, weights: list[float], dtype: DataType, layout: int, device: str
) -> None:
    case = row(
        "BatchScale",
        [data.draw(numbers(shape))],
        lambda x, **scales: tuple(x * s for s in scales.values()),
        attributes={f"scale_{i}": w for i, w in enumerate(weights)},
        outputs=len(weights),
    )
    judge(case, dtype, device, layout)


@given(
    data=st.data(),
    shape=shapes(),
    weights=st.lists(factors, min_size=2, max_size=3),
    dtype=float_types,
    layout=layouts,
)
def test_scaled_sum(
    data: Any, shape: Shape, weights: list[float], dtype: DataType, layout: int, device: str
) -> None:
    case = row(
        "ScaledSum",
        [data.draw(numbers(shape)) for _ in weights],
        lambda *xs, **scales: sum(x * s for x, s in zip(xs, scales.values(), strict=True)),
        attributes={f"scale_{i}": w for i, w in enumerate(weights)},
    )
    # torch may or may not fuse a product with a sum, by the layout, and products may cancel
    judge(case, dtype, device, layout, exact=False, terms=_sum_of_sizes)


def _sum_of_sizes(*xs: Tensor, **scales: float) -> Tensor:
    return torch.stack([(x * s).abs() for x, s in zip(xs, scales.values(), strict=True)]).sum(0)


@given(
    data=st.data(),
    sizes=st.lists(shapes(0, 3), min_size=1, max_size=4),
    fuse=flags,
    to=st.sampled_from([DataType.FLOAT16, DataType.BFLOAT16, DataType.FLOAT]),
    dtype=float_types,
    layout=layouts,
)
def test_mixed_precision_scale(
    data: Any,
    sizes: list[Shape],
    fuse: int,
    to: DataType,
    dtype: DataType,
    layout: int,
    device: str,
) -> None:
    def reference(s: Tensor, *xs: Tensor, fuse_outputs: int, **_: Any) -> tuple[Tensor, ...]:
        scaled = [x.double() * s.double().reshape(()) for x in xs]
        return (torch.cat([y.reshape(-1) for y in scaled]),) if fuse_outputs else tuple(scaled)

    factor = fixed(torch.tensor(data.draw(factors)), DataType.FLOAT)
    case = row(
        "MixedPrecisionScale",
        [factor, *[data.draw(numbers(shape)) for shape in sizes]],
        reference,
        attributes={"to": int(to), "fuse_outputs": fuse},
        outputs=1 if fuse else len(sizes),
    )
    results = judge(case, dtype, device, layout)
    assert all(y.dtype == to_torch(to) for y in results)


SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -2.0]


@st.composite
def specials(draw: Draw, shape: Shape) -> Tensor:
    """Numbers among which some are infinite or NaN, or none is."""
    values = SPECIAL if draw(st.booleans()) else SPECIAL[3:]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    picked = torch.randint(len(values), shape, generator=generator)
    return torch.tensor(values, dtype=torch.float64)[picked]


@given(data=st.data(), shape=shapes(), dtype=float_types, layout=layouts)
def test_is_finite(data: Any, shape: Shape, dtype: DataType, layout: int, device: str) -> None:
    x = data.draw(specials(shape))
    case = row("IsFinite", [x], lambda x: torch.as_tensor(np.isfinite(x.double().numpy())))
    judge(case, dtype, device, layout)


@given(
    data=st.data(),
    sizes=st.lists(shapes(), min_size=1, max_size=4),
    only=st.sampled_from([{}, {"isinf_only": 1}, {"isnan_only": 1}]),
    dtype=float_types,
    layout=layouts,
)
def test_is_all_finite(
    data: Any, sizes: list[Shape], only: Any, dtype: DataType, layout: int, device: str
) -> None:
    def reference(*xs: Tensor, isinf_only: int = 0, isnan_only: int = 0) -> Tensor:
        flat = [v for x in xs for v in x.double().reshape(-1).tolist()]
        infinite, strange = any(map(math.isinf, flat)), any(map(math.isnan, flat))
        return torch.tensor(not ((infinite and not isnan_only) or (strange and not isinf_only)))

    inputs = [data.draw(specials(shape)) for shape in sizes]
    judge(row("IsAllFinite", inputs, reference, attributes=only), dtype, device, layout)


@given(data=st.data(), sizes=st.lists(shapes(), min_size=2, max_size=4))
def test_all_are_finite_if_each_is(data: Any, sizes: list[Shape], device: str) -> None:
    xs = [data.draw(specials(shape)).to(device) for shape in sizes]
    assert bool(is_all_finite(*xs)) == all(bool(is_all_finite(x)) for x in xs)


@given(data=st.data(), shape=shapes(), layout=layouts)
def test_all(data: Any, shape: Shape, layout: int, device: str) -> None:
    x = data.draw(st.one_of(truths(shape), st.just(torch.ones(shape, dtype=torch.bool))))
    case = row(
        "All", [fixed(x, DataType.BOOL)], lambda x: torch.tensor([all(x.reshape(-1).tolist())])
    )
    judge(case, DataType.BOOL, device, layout)
