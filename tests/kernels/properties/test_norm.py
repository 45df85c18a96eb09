"""Normalization of batches and layers, and the gradients through the statistics."""

import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.properties.judge import judge
from kernels.properties.strategies import (
    Draw,
    Shape,
    axes,
    float_types,
    floats,
    layouts,
    numbers,
    row,
    shapes,
)
from onnxtrain.kernels.nn.batch_norm import batch_norm_internal, batch_normalization_grad
from onnxtrain.kernels.nn.layer_norm import layer_normalization, layer_normalization_grad
from onnxtrain.kernels.nn.rms_norm import (
    simplified_layer_normalization,
    simplified_layer_normalization_grad,
)
from onnxtrain.testing.case import Case
from onnxtrain.testing.case import given as fixed
from onnxtrain.types import DataType

Tensor = torch.Tensor
EPSILON = 2.0**-10
"""A number that the attribute keeps exactly."""


@st.composite
def layers(draw: Draw, smallest: int = 0) -> tuple[Tensor, int, Shape, Shape]:
    """Data, the first normalized axis, and the sizes before and from it on."""
    shape = draw(shapes(1, 4, smallest=smallest))
    axis = draw(axes(len(shape)))
    return draw(numbers(shape)), axis, shape[: axis % len(shape)], shape[axis % len(shape) :]


def statistics(x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation."""
    mean = x.mean(dims, keepdim=True)
    return mean, 1 / torch.sqrt((x - mean).square().mean(dims, keepdim=True) + EPSILON)


def dims_of(x: Tensor, count: int) -> tuple[int, ...]:
    """The last axes."""
    return tuple(range(x.ndim - count, x.ndim))


def stash(dtype: DataType) -> DataType:
    """The type in which statistics of a type are kept."""
    return DataType.DOUBLE if dtype == DataType.DOUBLE else DataType.FLOAT


def layer_back(
    dy: Tensor, normal: Tensor, scale: Tensor, inverse: Tensor, dims: tuple[int, ...], sign: int
) -> Tensor:
    """inverse·(g - mean g - xhat·mean(g·xhat)); a positive sign gives the size of the terms."""
    g = dy * scale
    means = g.mean(dims, keepdim=True), (g * normal).mean(dims, keepdim=True)
    return inverse * (g + sign * means[0] + sign * normal * means[1])


@given(arguments=layers(), data=st.data(), dtype=float_types, layout=layouts)
def test_layer_normalization_grad(
    arguments: Any, data: Any, dtype: DataType, layout: int, device: str
) -> None:
    x, axis, rows, sizes = arguments
    dims = dims_of(x, len(sizes))
    mean, inverse = statistics(x, dims)

    def reference(sign: int) -> Any:
        def of(dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor, inv: Tensor, **_: Any) -> Any:
            shaped = (*rows, *[1] * len(sizes))
            mean, inv = mean.reshape(shaped), inv.reshape(shaped)
            normal = (x - mean) * inv
            if sign > 0:
                dy, normal, scale = dy.abs(), (x.abs() + mean.abs()) * inv, scale.abs()
            before = tuple(range(len(rows)))
            dscale, dbias = (t.sum(before) if rows else t for t in (dy * normal, dy))
            return layer_back(dy, normal, scale, inv, dims, sign), dscale, dbias

        return of

    kept = stash(dtype)
    flat = data.draw(st.booleans())
    saved = [fixed(t.reshape(rows) if flat else t, kept) for t in (mean, inverse)]
    dy, scale = data.draw(numbers(x.shape)), data.draw(numbers(sizes))
    attributes = {"axis": axis, "epsilon": EPSILON, "stash_type": int(kept)}
    inputs = [dy, x, scale, *saved]
    case = row("LayerNormalizationGrad", inputs, reference(-1), attributes=attributes, outputs=3)
    judge(case, dtype, device, layout, exact=False, terms=reference(1))


@given(arguments=layers(), data=st.data(), dtype=float_types, layout=layouts)
def test_invertible_layer_normalization_grad(
    arguments: Any, data: Any, dtype: DataType, layout: int, device: str
) -> None:
    x, axis, rows, sizes = arguments
    dims = dims_of(x, len(sizes))
    mean, inverse = statistics(x, dims)
    scale = data.draw(numbers(sizes)).abs() + 0.5
    bias = data.draw(numbers(sizes))
    y = (x - mean) * inverse * scale + bias

    def reference(sign: int) -> Any:
        def of(dy: Tensor, y: Tensor, scale: Tensor, bias: Tensor, inv: Tensor, **_: Any) -> Any:
            normal = (y - bias) / scale
            if sign > 0:
                dy, normal = dy.abs(), (y.abs() + bias.abs()) / scale
            before = tuple(range(len(rows)))
            dscale, dbias = (t.sum(before) if rows else t for t in (dy * normal, dy))
            return layer_back(dy, normal, scale, inv, dims, sign), dscale, dbias

        return of

    kept = stash(dtype)
    inputs = [data.draw(numbers(x.shape)), y, scale, bias, fixed(inverse, kept)]
    attributes = {"axis": axis, "epsilon": EPSILON, "stash_type": int(kept)}
    case = row(
        "InvertibleLayerNormalizationGrad",
        inputs,
        reference(-1),
        attributes=attributes,
        outputs=3,
    )
    judge(case, dtype, device, layout, exact=False, terms=reference(1))


@given(arguments=layers(), data=st.data(), dtype=float_types, layout=layouts)
def test_simplified_layer_normalization_grad(
    arguments: Any, data: Any, dtype: DataType, layout: int, device: str
) -> None:
    x, axis, rows, sizes = arguments
    dims = dims_of(x, len(sizes))
    inverse = 1 / torch.sqrt(x.square().mean(dims, keepdim=True) + EPSILON)

    def reference(sign: int) -> Any:
        def of(dy: Tensor, x: Tensor, scale: Tensor, inv: Tensor, **_: Any) -> Any:
            normal = x * inv
            if sign > 0:
                dy, normal, scale = dy.abs(), normal.abs(), scale.abs()
            g = dy * scale
            dx = inv * (g + sign * normal * (g * normal).mean(dims, keepdim=True))
            dscale = dy * normal
            return dx, dscale.sum(tuple(range(len(rows)))) if rows else dscale

        return of

    kept = stash(dtype)
    inputs = [data.draw(numbers(x.shape)), x, data.draw(numbers(sizes)), fixed(inverse, kept)]
    attributes = {"axis": axis, "epsilon": EPSILON, "stash_type": int(kept)}
    case = row(
        "SimplifiedLayerNormalizationGrad",
        inputs,
        reference(-1),
        attributes=attributes,
        outputs=2,
    )
    judge(case, dtype, device, layout, exact=False, terms=reference(1))


@given(arguments=layers(smallest=1), data=st.data(), factor=floats(0.5, 4.0))
def test_layer_gradients_are_orthogonal_to_what_does_not_matter(
    arguments: Any, data: Any, factor: float, device: str
) -> None:
    x, axis, _, sizes = arguments
    x = x.to(device)
    dims = dims_of(x, len(sizes))
    dy, scale = data.draw(numbers(x.shape)).to(device), data.draw(numbers(sizes)).to(device)
    options: Any = {"axis": axis, "epsilon": 0.0, "stash_type": 11}
    # Distinct numbers, or there would be no deviation to divide by.
    x = (torch.arange(x.numel(), device=device) + 1.0).double().sin().reshape(x.shape)
    y, mean, inverse = layer_normalization(x, scale, None, **options)
    if math.prod(sizes) > 1:
        dx, _, dbias = layer_normalization_grad(dy, x, scale, mean, inverse, **options)
        zeros = torch.zeros_like(mean)
        # A shift of a row, and without epsilon its scale, change nothing.
        torch.testing.assert_close(dx.sum(dims, keepdim=True), zeros)
        torch.testing.assert_close((dx * (x - mean)).sum(dims, keepdim=True), zeros)
        moved, _, _ = layer_normalization(x * factor + 3, scale, None, **options)
        torch.testing.assert_close(moved, y)
        torch.testing.assert_close(dbias.sum(), dy.sum())
    rms, root = simplified_layer_normalization(x, scale, **options)
    dx, dscale = simplified_layer_normalization_grad(dy, x, scale, root, **options)
    across = (dx * x).sum(dims, keepdim=True)
    torch.testing.assert_close(across, torch.zeros_like(across))
    torch.testing.assert_close((dscale * scale).sum(), (dy * rms).sum())


@st.composite
def batches(draw: Draw, smallest: int = 1) -> tuple[Tensor, Shape]:
    """Data with channels, and the axes that are averaged; a vector has one channel."""
    shape = draw(shapes(1, 5, smallest=smallest))
    return draw(numbers(shape)), (0, *range(2, len(shape)))


def per_channel(values: Tensor, x: Tensor) -> Tensor:
    """A value for each channel, in a shape that broadcasts."""
    return values.reshape(()) if x.ndim == 1 else values.reshape(-1, *[1] * (x.ndim - 2))


def channels(x: Tensor) -> int:
    return 1 if x.ndim == 1 else x.shape[1]


@given(
    arguments=batches(),
    data=st.data(),
    momentum=floats(0.0, 1.0),
    dtype=float_types,
    layout=layouts,
)
def test_batch_norm_internal(
    arguments: Any, data: Any, momentum: float, dtype: DataType, layout: int, device: str
) -> None:
    x, dims = arguments
    count = x.numel() // channels(x)

    def reference(x: Tensor, scale: Tensor, b: Tensor, old: Tensor, var: Tensor, **_: Any) -> Any:
        mean, inverse = statistics(x, dims)
        y = (x - mean) * inverse * per_channel(scale, x) + per_channel(b, x)
        flat = mean.reshape(-1), (x - mean).square().mean(dims).reshape(-1)
        spread = flat[1] * (count / max(count - 1, 1) if device == "cuda" else 1)
        blended = [o * momentum + n * (1 - momentum) for o, n in ((old, flat[0]), (var, spread))]
        return y, *blended, flat[0], inverse.reshape(-1)

    def terms(x: Tensor, scale: Tensor, b: Tensor, old: Tensor, var: Tensor, **_: Any) -> Any:
        # The mean is as exact as the largest number; the variance, as its square.
        largest = x.abs().amax()
        _, inverse = statistics(x, dims)
        each = largest * inverse.reshape(-1)
        y = largest * inverse * per_channel(scale.abs(), x) + per_channel(b.abs(), x)
        mean = largest + old.abs()
        return y + x * 0, mean, largest.square() + var, largest.expand(len(old)), each.square()

    inputs = [x, *[data.draw(numbers((channels(x),))) for _ in range(4)]]
    inputs[4] = inputs[4].abs()
    case = row(
        "BatchNormInternal",
        inputs,
        reference,
        attributes={"epsilon": EPSILON, "momentum": momentum, "training_mode": 1},
        outputs=5,
    )
    judge(case, dtype, device, layout, exact=False, terms=terms)


def batch_back(sign: int, dims: tuple[int, ...]) -> Any:
    """dX = s·r·(dY - mean dY - xhat·mean(dY·xhat)), and the sums for scale and bias."""

    def of(dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor, inv: Tensor, **_: Any) -> Any:
        mean, inv = per_channel(mean, x), per_channel(inv, x)
        normal = (x - mean) * inv
        if sign > 0:
            dy, normal, scale = dy.abs(), (x.abs() + mean.abs()) * inv, scale.abs()
        means = dy.mean(dims, keepdim=True), (dy * normal).mean(dims, keepdim=True)
        inner = dy + sign * means[0] + sign * normal * means[1]
        dx = per_channel(scale, x) * inv * inner
        return dx, (dy * normal).sum(dims).reshape(-1), dy.sum(dims).reshape(-1)

    return of


@given(arguments=batches(smallest=0), data=st.data(), dtype=float_types, layout=layouts)
def test_batch_normalization_grad(
    arguments: Any, data: Any, dtype: DataType, layout: int, device: str
) -> None:
    x, dims = arguments
    mean, inverse = (t.reshape(-1) for t in statistics(x, dims))
    inputs = [data.draw(numbers(x.shape)), x, data.draw(numbers((channels(x),))), mean, inverse]
    case: Case = row(
        "BatchNormalizationGrad",
        inputs,
        batch_back(-1, dims),
        attributes={"epsilon": EPSILON},
        outputs=3,
    )
    judge(case, dtype, device, layout, exact=False, terms=batch_back(1, dims))


@given(shape=shapes(1, 5))
def test_a_batch_of_nothing_has_no_statistics(shape: Shape, device: str) -> None:
    shape = (0, *shape)
    x, one = torch.ones(shape, device=device), torch.ones(channels(torch.ones(shape)))
    values = [one.to(device)] * 4
    with pytest.raises(ValueError, match=re.escape(f"X has shape {shape}: a batch of nothing")):
        batch_norm_internal(x, *values)
    assert batch_norm_internal(x, *values, training_mode=0)[0].shape == shape


@given(arguments=batches(), data=st.data())
def test_a_shift_of_a_channel_changes_nothing(arguments: Any, data: Any, device: str) -> None:
    x, dims = arguments
    x, dy = x.to(device), data.draw(numbers(x.shape)).to(device)
    scale, bias, old, var = (data.draw(numbers((channels(x),))).to(device) for _ in range(4))
    *_, mean, inverse = batch_norm_internal(x, scale, bias, old, var.abs())
    assert mean is not None and inverse is not None
    dx, _, dbias = batch_normalization_grad(dy, x, scale, mean, inverse, epsilon=1e-5)
    sums = dx.sum(dims)
    largest = float((scale.abs().max() * inverse.max() * dy.abs().max()).clamp(min=1))
    assert float(sums.abs().max()) <= 1e-12 * x.numel() * largest
    torch.testing.assert_close(dbias.sum(), dy.sum())


@pytest.mark.parametrize("update", [False, True])
@given(arguments=batches(), data=st.data())
def test_running_statistics_with_momentum_one_stay(
    update: bool, arguments: Any, data: Any, device: str
) -> None:
    x, _ = arguments
    x = x.to(device)
    scale, bias, old, var = (data.draw(numbers((channels(x),))).to(device) for _ in range(4))
    before = old.clone(), var.clone()
    _, mean, spread, *_ = batch_norm_internal(x, scale, bias, old, var, momentum=1.0, update=update)
    assert mean is not None and spread is not None
    assert torch.equal(mean, before[0]) and torch.equal(spread, before[1])
