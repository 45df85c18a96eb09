"""Slices, joins, cuts, views and resized images, with the gradients that undo them."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st

from kernels.properties.judge import absolute, judge
from kernels.properties.strategies import (
    TYPES,
    Draw,
    Shape,
    axes,
    axes_lists,
    float_types,
    layouts,
    numbers,
    row,
    shapes,
    vector,
)
from onnxtrain.kernels.tensor.concat import concat_training, split_training
from onnxtrain.kernels.tensor.resize import resize, resize_grad
from onnxtrain.kernels.tensor.shape import pass_through, view
from onnxtrain.kernels.tensor.slice import slice_, slice_grad
from onnxtrain.testing.case import given as fixed
from onnxtrain.types import DataType

Tensor = torch.Tensor
any_types = st.sampled_from([*TYPES, DataType.INT64, DataType.INT8, DataType.UINT16])
FIRST, LAST = -(2**63), (2**63 - 1, 2**31 - 1)
"""Bounds that mean the begin and the end of an axis of any size."""
bounds = st.one_of(st.integers(-9, 9), st.sampled_from([FIRST, *LAST]))


@st.composite
def slices(draw: Draw) -> tuple[Shape, list[tuple[int, ...]]]:
    """A shape, and starts, ends, axes and steps; some of the last two are left out."""
    shape = draw(shapes(1, 5))
    names = draw(axes_lists(len(shape), smallest=1))
    count = len(names)
    starts, ends = (draw(st.lists(bounds, min_size=count, max_size=count)) for _ in range(2))
    if draw(st.booleans()):
        return shape, [tuple(starts), tuple(ends), names]
    step = st.integers(-3, 3).filter(bool)
    steps = draw(st.lists(step, min_size=count, max_size=count))
    # Backwards, ONNX's inference and onnxruntime disagree on what the largest end means.
    for i, n in enumerate(steps):
        ends[i] = FIRST if n < 0 and ends[i] in LAST else ends[i]
    return shape, [tuple(starts), tuple(ends), names, tuple(steps)]


def chosen(shape: Shape, arguments: Sequence[tuple[int, ...]]) -> Tensor:
    """Flat places that a slice takes, by walking along each of its axes."""
    places = torch.arange(math.prod(shape)).reshape(shape)
    starts, ends, names, *rest = arguments
    steps = rest[0] if rest else (1,) * len(starts)
    for start, end, axis, step in zip(starts, ends, names, steps, strict=True):
        size = places.shape[axis]
        # ONNX moves a start before the first element onto it, also when walking backwards.
        picked = list(range(size))[slice(max(start, -size), end, step)]
        places = places.index_select(axis, torch.tensor(picked, dtype=torch.int64))
    return places


@given(arguments=slices(), data=st.data(), dtype=any_types, layout=layouts)
def test_slice(arguments: Any, data: Any, dtype: DataType, layout: int, device: str) -> None:
    shape, numbers_ = arguments
    places = chosen(shape, numbers_)
    inputs = [data.draw(numbers(shape, scale=9.0)), *[vector(*n) for n in numbers_]]
    case = row("Slice", inputs, lambda x, *_: x.reshape(-1)[places], domain="")
    judge(case, dtype, device, layout)


@given(arguments=slices(), data=st.data(), dtype=float_types, layout=layouts)
def test_slice_grad(arguments: Any, data: Any, dtype: DataType, layout: int, device: str) -> None:
    shape, numbers_ = arguments
    places = chosen(shape, numbers_)

    def reference(dy: Tensor, *_: Any) -> Tensor:
        dx = dy.new_zeros(math.prod(shape))
        dx[places.reshape(-1)] = dy.reshape(-1)
        return dx.reshape(shape)

    inputs = [data.draw(numbers(places.shape)), vector(*shape), *[vector(*n) for n in numbers_]]
    judge(row("SliceGrad", inputs, reference), dtype, device, layout)


@given(arguments=slices(), data=st.data())
def test_slicing_the_gradient_gives_it_back(arguments: Any, data: Any, device: str) -> None:
    shape, numbers_ = arguments
    x = data.draw(numbers(shape)).to(device)
    y = slice_(x, *numbers_)
    dx = slice_grad(y, list(shape), *numbers_)
    assert torch.equal(slice_(dx, *numbers_), y)
    assert torch.equal(dx[dx != 0], x[dx != 0])


@st.composite
def parts(draw: Draw) -> tuple[Shape, int, list[int]]:
    """A shape, an axis, and the sizes of parts along it."""
    shape = list(draw(shapes(1, 5)))
    axis = draw(axes(len(shape)))
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    shape[axis] = sum(sizes)
    return tuple(shape), axis, sizes


def _cut(x: Tensor, axis: int, sizes: Sequence[int]) -> list[Tensor]:
    found, start = [], 0
    for size in sizes:
        found.append(x.narrow(axis, start, size).clone())
        start += size
    return found


@given(arguments=parts(), data=st.data(), dtype=any_types, layout=layouts)
def test_concat_training(
    arguments: Any, data: Any, dtype: DataType, layout: int, device: str
) -> None:
    shape, axis, sizes = arguments
    inputs = _cut(data.draw(numbers(shape, scale=9.0)), axis, sizes)
    case = row(
        "ConcatTraining",
        inputs,
        lambda *xs, axis: (torch.cat(xs, axis), torch.tensor(sizes)),
        attributes={"axis": axis},
        outputs=2,
    )
    judge(case, dtype, device, layout)


@given(arguments=parts(), data=st.data(), dtype=any_types, layout=layouts)
def test_split_training(
    arguments: Any, data: Any, dtype: DataType, layout: int, device: str
) -> None:
    shape, axis, sizes = arguments
    case = row(
        "SplitTraining",
        [data.draw(numbers(shape, scale=9.0)), vector(*sizes)],
        lambda x, _, axis: tuple(_cut(x, axis, sizes)),
        attributes={"axis": axis},
        outputs=len(sizes),
    )
    judge(case, dtype, device, layout)


@given(arguments=parts(), data=st.data())
def test_splitting_undoes_joining(arguments: Any, data: Any, device: str) -> None:
    shape, axis, sizes = arguments
    inputs = _cut(data.draw(numbers(shape)).to(device), axis, sizes)
    joined, lengths = concat_training(*inputs, axis=axis)
    back = split_training(joined, lengths.tolist(), axis=axis, wanted=(True,) * len(sizes))
    assert all(torch.equal(a, b) for a, b in zip(inputs, back, strict=True))


@given(
    data=st.data(),
    all_sizes=st.lists(shapes(0, 3, largest=4), min_size=1, max_size=4),
    dtype=float_types,
    layout=layouts,
)
def test_view(data: Any, all_sizes: list[Shape], dtype: DataType, layout: int, device: str) -> None:
    counts = [math.prod(shape) for shape in all_sizes]
    x = data.draw(numbers((sum(counts),)))
    case = row(
        "View",
        [x, *[vector(*shape) for shape in all_sizes]],
        lambda x, *_: tuple(
            part.reshape(s) for part, s in zip(x.split(counts), all_sizes, strict=True)
        ),
        outputs=len(counts),
    )
    judge(case, dtype, device, layout)
    wanted = (True,) * len(counts)
    made = view(x.to(device), *map(list, all_sizes), wanted=wanted)
    assert all(part is not None and part.is_contiguous() for part in made)


@given(data=st.data(), all_sizes=st.lists(shapes(), min_size=1, max_size=4), dtype=float_types)
def test_pass_through(data: Any, all_sizes: list[Shape], dtype: DataType, device: str) -> None:
    inputs = [data.draw(numbers(shape)) for shape in all_sizes]
    judge(row("PassThrough", inputs, lambda *xs: xs, outputs=len(inputs)), dtype, device)
    values = [x.to(device) for x in inputs]
    assert all(a is b for a, b in zip(pass_through(*values), values, strict=True))


@given(data=st.data(), all_sizes=st.lists(shapes(), min_size=1, max_size=4), dtype=float_types)
def test_group(data: Any, all_sizes: list[Shape], dtype: DataType, device: str) -> None:
    inputs = [data.draw(numbers(shape)) for shape in all_sizes]
    judge(row("Group", inputs, lambda *_: torch.tensor(True)), dtype, device)


@st.composite
def images(draw: Draw) -> tuple[Shape, list[float], dict[str, Any]]:
    """A shape, factors and attributes that torch's own interpolation knows."""
    rank = draw(st.integers(1, 3))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    shape += tuple(draw(st.lists(st.integers(1, 6), min_size=rank, max_size=rank)))
    factors = [1.0, 1.0] + [draw(st.sampled_from([0.5, 1.0, 2.0, 3.0])) for _ in range(rank)]
    assume(all(int(n * f) for n, f in zip(shape, factors, strict=True)))
    # torch computes the factor from the sizes, ONNX takes it as it is given.
    assume(all(int(n * f) == n * f for n, f in zip(shape, factors, strict=True)))
    kind = draw(st.sampled_from(["asymmetric", "half_pixel"]))
    if kind == "asymmetric":
        return shape, factors, {"mode": "nearest", "nearest_mode": "floor"}
    return shape, factors, {"mode": "linear"}


def interpolated(x: Tensor, factors: list[float], attributes: dict[str, Any]) -> Tensor:
    """torch's interpolation to the sizes that the factors give."""
    sizes = [int(n * f) for n, f in zip(x.shape, factors, strict=True)][2:]
    if attributes["mode"] == "nearest":
        return F.interpolate(x, sizes, mode="nearest")
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(sizes)]
    return F.interpolate(x, sizes, mode=mode, align_corners=False)


def _all_attributes(attributes: dict[str, Any]) -> dict[str, Any]:
    place = "asymmetric" if attributes["mode"] == "nearest" else "half_pixel"
    return {**attributes, "coordinate_transformation_mode": place}


@given(image=images(), data=st.data(), dtype=float_types, layout=layouts)
def test_resize_grad(image: Any, data: Any, dtype: DataType, layout: int, device: str) -> None:
    shape, factors, attributes = image
    out = interpolated(torch.zeros(shape), factors, attributes).shape

    def reference(dy: Tensor, x: Tensor, *_: Any, **__: Any) -> Tensor:
        leaf = x.double().requires_grad_()
        y = interpolated(leaf, factors, attributes)
        return torch.autograd.grad(y, leaf, dy.double())[0].to(dy.dtype)

    scales = torch.tensor(factors, dtype=torch.float32)
    case = row(
        "ResizeGrad",
        [
            data.draw(numbers(out)),
            data.draw(numbers(shape)),
            None,
            fixed(scales, DataType.FLOAT, constant=True),
        ],
        reference,
        attributes=_all_attributes(attributes),
    )
    exact = attributes["mode"] == "nearest"
    judge(case, dtype, device, layout, exact=exact, terms=absolute(reference))


@pytest.mark.parametrize("place", ["half_pixel", "align_corners", "pytorch_half_pixel"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@given(data=st.data(), shape=shapes(1, 4, smallest=1, largest=5), exclude=st.booleans())
def test_resize_grad_is_the_adjoint_of_resize(
    mode: str, place: str, data: Any, shape: Shape, exclude: bool, device: str
) -> None:
    sizes = data.draw(st.lists(st.integers(1, 7), min_size=len(shape), max_size=len(shape)))
    x = data.draw(numbers(shape)).to(device)
    options = {
        "mode": mode,
        "coordinate_transformation_mode": place,
        "exclude_outside": int(exclude and mode == "cubic"),
    }
    y = resize(x, sizes=sizes, **options)
    dy = data.draw(numbers(sizes)).to(device)
    dx = resize_grad(dy, x, deterministic=False, **options)
    torch.testing.assert_close((dy * y).sum(), (dx * x).sum())
