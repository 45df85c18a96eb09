"""Softmax, its logarithm, their gradients, and the bias and dropout fused with them."""

import math
from collections.abc import Callable
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
from onnxtrain.kernels.activation.softmax import (
    log_softmax,
    log_softmax_grad,
    softmax,
    softmax_grad,
    softmax_rows,
    softmax_rows_grad,
)
from onnxtrain.testing.case import given as fixed
from onnxtrain.testing.close import mismatch
from onnxtrain.types import DataType

Tensor = torch.Tensor


def over(x: Tensor, axis: int, flat: bool) -> tuple[int, ...]:
    """The axes that a softmax runs over: one, or all from it on."""
    return tuple(range(axis % x.ndim, x.ndim)) if flat else (axis,)


def total(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    return x.sum(dims, keepdim=True)


def softmax_of(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """eˣ / Σ eˣ, shifted by the largest element."""
    if not x.numel():
        return x.clone()
    e = torch.exp(x - x.amax(dims, keepdim=True))
    return e / total(e, dims)


def log_softmax_of(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """x - ln Σ eˣ, shifted by the largest element."""
    if not x.numel():
        return x.clone()
    shifted = x - x.amax(dims, keepdim=True)
    return shifted - torch.log(total(torch.exp(shifted), dims))


def softmax_back(dy: Tensor, y: Tensor, dims: tuple[int, ...], sign: int = -1) -> Tensor:
    """y·(dY - Σ y·dY); with the other sign, the magnitude of its terms for positive dY."""
    return y * (dy + sign * total(y * dy, dims))


def log_softmax_back(dy: Tensor, y: Tensor, dims: tuple[int, ...], sign: int = -1) -> Tensor:
    """dY - e^y·Σ dY; with the other sign, the magnitude of its terms for positive dY."""
    return dy + sign * torch.exp(y) * total(dy, dims)


GRADIENTS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "SoftmaxGrad": (softmax_of, softmax_back),
    "LogSoftmaxGrad": (log_softmax_of, log_softmax_back),
}


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("op", GRADIENTS)
@given(data=st.data(), shape=shapes(1), dtype=float_types, layout=layouts)
def test_gradients(
    op: str, flat: bool, data: Any, shape: Shape, dtype: DataType, layout: int, device: str
) -> None:
    forward, backward = GRADIENTS[op]
    axis = data.draw(axes(len(shape)))
    dims = over(torch.empty(shape), axis, flat)
    y = forward(data.draw(numbers(shape, scale=3.0)), dims)
    case = row(
        op if flat else f"{op}_13",
        [data.draw(numbers(shape)), y],
        lambda dy, y, axis: backward(dy, y, dims),
        attributes={"axis": axis},
    )
    judge(
        case,
        dtype,
        device,
        layout,
        exact=False,
        terms=lambda dy, y, axis: backward(dy.abs(), y, dims, 1),
    )


@pytest.mark.parametrize("version", [11, 13])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@given(data=st.data(), shape=shapes(1), dtype=float_types, layout=layouts)
def test_functions(
    op: str, version: int, data: Any, shape: Shape, dtype: DataType, layout: int, device: str
) -> None:
    forward = softmax_of if op == "Softmax" else log_softmax_of
    case = row(
        op,
        [data.draw(numbers(shape, scale=3.0))],
        lambda x, axis: forward(x, over(x, axis, version < 13)),
        attributes={"axis": data.draw(axes(len(shape)))},
        domain="",
        opset=version,
    )
    # bfloat16 came with opset 13.
    dtype = DataType.FLOAT if version < 13 and dtype == DataType.BFLOAT16 else dtype
    # The largest logarithm may be near 0, the shifted numbers are not.
    terms = (lambda x, axis: x) if op == "LogSoftmax" else None
    judge(case, dtype, device, layout, exact=False, terms=terms)


@given(data=st.data(), shape=shapes(1, smallest=1), shift=st.integers(-100, 100))
def test_sums_along_the_axis(data: Any, shape: Shape, shift: int, device: str) -> None:
    axis = data.draw(axes(len(shape)))
    x, dy = (data.draw(numbers(shape)).to(device) for _ in range(2))
    y = softmax(x, axis=axis)
    ones = torch.ones_like(y.sum(axis))
    torch.testing.assert_close(y.sum(axis), ones)
    torch.testing.assert_close(softmax(x + shift, axis=axis), y)
    zeros = torch.zeros_like(ones)
    torch.testing.assert_close(softmax_grad(dy, y, axis=axis).sum(axis), zeros)
    of_log = log_softmax_grad(dy, log_softmax(x, axis=axis), axis=axis)
    torch.testing.assert_close(of_log.sum(axis), zeros)
    rows = softmax_rows_grad(dy, softmax_rows(x, axis=axis), axis=axis)
    dims = tuple(range(axis % len(shape), len(shape)))
    sums = rows.sum(dims)
    torch.testing.assert_close(sums, torch.zeros_like(sums))


@st.composite
def biased(draw: Draw) -> tuple[Tensor, Tensor, int, int]:
    """Data, bias, axis, and whether each row of bias serves neighbouring rows."""
    inner = draw(flags)
    repeats, count = draw(st.integers(1, 3)), draw(shapes(0, 2, smallest=1, largest=3))
    width = draw(shapes(1, 2, largest=4))
    shape = (*count, repeats, *width) if inner else (repeats, *count, *width)
    ones = (*count, 1, *width) if inner else (1, *count, *width)
    axis = len(shape) - len(width)
    return draw(numbers(shape)), draw(numbers(ones)), axis, inner


def _biased_softmax(x: Tensor, bias: Tensor, axis: int) -> Tensor:
    return softmax_of(x + bias, over(x, axis, True))


@given(arguments=biased(), dtype=float_types, layout=layouts)
def test_bias_softmax(arguments: Any, dtype: DataType, layout: int, device: str) -> None:
    x, bias, axis, inner = arguments
    case = row(
        "BiasSoftmax",
        [x, bias],
        lambda x, b, axis, **_: _biased_softmax(x, b, axis),
        attributes={"axis": axis, "is_inner_broadcast": inner},
    )
    judge(case, dtype, device, layout, exact=False)


@given(arguments=biased(), ratio=floats(0.0, 0.875), dtype=float_types, layout=layouts)
def test_bias_softmax_dropout(
    arguments: Any, ratio: float, dtype: DataType, layout: int, device: str
) -> None:
    x, bias, axis, inner = arguments
    nothing = torch.zeros(())
    case = row(
        "BiasSoftmaxDropout",
        [x, bias, scalar(ratio)],
        lambda x, b, *_, axis, **__: (nothing, nothing, _biased_softmax(x, b, axis)),
        attributes={"axis": axis, "is_inner_broadcast": inner, "seed": 5},
        outputs=3,
        compare=[2],
    )
    dropped, mask, soft = judge(case, dtype, device, layout, exact=False)
    kept = torch.where(mask, soft.double() / (1 - ratio), 0.0)
    assert mismatch(dropped, kept, 0.0) is None
    assert torch.equal(dropped != 0, mask & (soft != 0))


@given(data=st.data(), shape=shapes(1), ratio=floats(0.0, 0.875), dtype=float_types, layout=layouts)
def test_softmax_dropout_grad(
    data: Any, shape: Shape, ratio: float, dtype: DataType, layout: int, device: str
) -> None:
    axis = data.draw(axes(len(shape)))
    dims = over(torch.empty(shape), axis, True)
    y = softmax_of(data.draw(numbers(shape)), dims)

    def reference(dy: Tensor, mask: Tensor, y: Tensor, *_: Any, axis: int) -> Tensor:
        return softmax_back(torch.where(mask, dy / (1 - ratio), 0.0), y, dims)

    def terms(dy: Tensor, mask: Tensor, y: Tensor, *_: Any, axis: int) -> Tensor:
        return softmax_back(dy.abs() / (1 - ratio), y, dims, 1)

    case = row(
        "SoftmaxDropoutGrad",
        [
            data.draw(numbers(shape)),
            fixed(data.draw(truths(shape)), DataType.BOOL),
            y,
            scalar(ratio),
        ],
        reference,
        attributes={"axis": axis},
    )
    judge(case, dtype, device, layout, exact=False, terms=terms)


@given(shape=shapes(1), data=st.data())
def test_rows_are_what_lies_behind_the_axis(shape: Shape, data: Any, device: str) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = data.draw(numbers(shape)).to(device)
    rows = x.reshape(math.prod(shape[:axis]), math.prod(shape[axis:]))
    expected = softmax(rows, axis=1).reshape(shape)
    assert torch.equal(softmax_rows(x, axis=axis), expected)
