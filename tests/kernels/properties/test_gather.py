"""Slices and elements picked by indices, the sums that are their gradients, and refusals."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from kernels.properties.judge import absolute, judge, place
from kernels.properties.strategies import (
    Draw,
    Shape,
    axes,
    float_types,
    index_types,
    indices,
    layouts,
    numbers,
    row,
    shapes,
    vector,
)
from onnxtrain.kernels.tensor import gather_nd as tuples
from onnxtrain.kernels.tensor.gather import (
    gather,
    gather_elements,
    gather_elements_grad,
    gather_grad,
    shrunken_gather,
)
from onnxtrain.kernels.tensor.scatter import scatter_elements, scatter_nd
from onnxtrain.kernels.tensor.unpad import flatten_and_unpad, pad_and_unflatten
from onnxtrain.testing.case import Case
from onnxtrain.testing.case import given as fixed
from onnxtrain.types import DataType

Tensor = torch.Tensor


def sum_of(values: Tensor, places: Tensor, shape: Shape) -> Tensor:
    """Zeros of a shape with values added at flat places, one after the other."""
    total = values.new_zeros(math.prod(shape))
    for value, place_ in zip(values.reshape(-1), places.reshape(-1).tolist(), strict=True):
        total[place_] += value
    return total.reshape(shape)


def judge_sum(case: Case, dtype: DataType, device: str, layout: int) -> None:
    """Judge sums over equal indices, which a GPU adds up in any order."""
    assert case.reference is not None
    terms = absolute(case.reference)
    judge(case, dtype, device, layout, exact=device == "cpu", terms=terms)


def flat_numbers(shape: Shape) -> Tensor:
    """For each element of a tensor, its place."""
    return torch.arange(math.prod(shape)).reshape(shape)


@st.composite
def gather_arguments(draw: Draw) -> tuple[Shape, int, Tensor]:
    """Shape of the data, axis and indices; none where the axis is empty."""
    shape = draw(shapes(1, 4))
    axis = draw(axes(len(shape)))
    index_shape = draw(shapes(0, 2, largest=5))
    assume(shape[axis] or not math.prod(index_shape))
    return shape, axis, draw(indices(index_shape, shape[axis]))


def taken(x: Tensor, index: Tensor, axis: int) -> Tensor:
    """NumPy's take."""
    return torch.as_tensor(x.numpy().take(index.numpy(), axis, mode="wrap"))


@given(arguments=gather_arguments(), data=st.data(), dtype=float_types, layout=layouts)
def test_gather_grad(arguments: Any, data: Any, dtype: DataType, layout: int, device: str) -> None:
    shape, axis, index = arguments
    places = taken(flat_numbers(shape), index, axis)
    case = row(
        "GatherGrad",
        [
            vector(*shape),
            fixed(index, data.draw(index_types)),
            data.draw(numbers(places.shape)),
        ],
        lambda _, __, dy, axis: sum_of(dy, places, shape),
        attributes={"axis": axis},
    )
    judge_sum(case, dtype, device, layout)


@given(arguments=gather_arguments(), data=st.data(), dtype=float_types, layout=layouts)
def test_gather(arguments: Any, data: Any, dtype: DataType, layout: int, device: str) -> None:
    shape, axis, index = arguments
    inputs = [data.draw(numbers(shape)), fixed(index, data.draw(index_types))]
    case = row(
        "Gather",
        inputs,
        lambda x, i, axis: x.reshape(-1)[taken(flat_numbers(shape), i, axis)],
        attributes={"axis": axis},
        domain="",
    )
    judge(case, dtype, device, layout)


@given(arguments=gather_arguments(), data=st.data())
def test_gather_grad_is_the_adjoint_of_gather(arguments: Any, data: Any, device: str) -> None:
    shape, axis, index = arguments
    x = data.draw(numbers(shape)).to(device)
    forward = gather(x, index.to(device), axis=axis)
    dy = data.draw(numbers(forward.shape)).to(device)
    back = gather_grad(list(shape), index.to(device), dy, axis=axis)
    torch.testing.assert_close((dy * forward).sum(), (back * x).sum())


@st.composite
def element_arguments(draw: Draw) -> tuple[Shape, int, Tensor]:
    """Shape of the data, axis and indices for its elements."""
    shape = draw(shapes(1, 4))
    axis = draw(axes(len(shape)))
    place_ = axis % len(shape)
    index_shape = [draw(st.integers(0, n)) for n in shape]
    index_shape[place_] = draw(st.integers(0, 9)) if shape[place_] else 0
    return shape, axis, draw(indices(index_shape, shape[place_]))


def element_places(shape: Shape, index: Tensor, axis: int) -> Tensor:
    """For each index, the flat place of the element that it means."""
    steps = list(torch.meshgrid(*[torch.arange(n) for n in index.shape], indexing="ij"))
    steps[axis] = index.long() % max(shape[axis], 1)
    return flat_numbers(shape)[tuple(steps)]


@given(arguments=element_arguments(), data=st.data(), dtype=float_types, layout=layouts)
def test_gather_elements_grad(
    arguments: Any, data: Any, dtype: DataType, layout: int, device: str
) -> None:
    shape, axis, index = arguments
    places = element_places(shape, index, axis)
    case = row(
        "GatherElementsGrad",
        [
            data.draw(numbers(index.shape)),
            vector(*shape),
            fixed(index, data.draw(index_types)),
        ],
        lambda dy, *_, axis: sum_of(dy, places, shape),
        attributes={"axis": axis},
    )
    judge_sum(case, dtype, device, layout)


@given(arguments=element_arguments(), data=st.data())
def test_gather_elements_grad_is_the_adjoint(arguments: Any, data: Any, device: str) -> None:
    shape, axis, index = arguments
    x, dy = (data.draw(numbers(s)).to(device) for s in (shape, index.shape))
    index = index.to(device)
    forward = gather_elements(x, index, axis=axis)
    back = gather_elements_grad(dy, list(shape), index, axis=axis, deterministic=False)
    torch.testing.assert_close((dy * forward).sum(), (back * x).sum())


REDUCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "none": lambda old, new: new,
    "add": torch.add,
    "mul": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}


def reduced(data: Tensor, updates: Tensor, places: Tensor, how: str) -> Tensor:
    """The data with each update combined into its place, one after the other."""
    flat = data.reshape(-1).clone()
    for value, place_ in zip(updates.reshape(-1), places.reshape(-1).tolist(), strict=True):
        flat[place_] = REDUCE[how](flat[place_], value)
    return flat.reshape(data.shape)


@pytest.mark.parametrize("how", REDUCE)
@given(arguments=element_arguments(), data=st.data(), dtype=float_types, layout=layouts)
def test_scatter_elements(
    how: str, arguments: Any, data: Any, dtype: DataType, layout: int, device: str
) -> None:
    shape, axis, index = arguments
    places = element_places(shape, index, axis)
    if how == "none":
        assume(len(set(places.reshape(-1).tolist())) == places.numel())
    case = row(
        "ScatterElements",
        [
            data.draw(numbers(shape)),
            fixed(index, data.draw(index_types)),
            data.draw(numbers(index.shape)),
        ],
        lambda x, _, updates, **__: reduced(x, updates, places, how),
        attributes={"axis": axis, "reduction": how},
        domain="",
    )
    judge_sum(case, dtype, device, layout)


@st.composite
def tuple_arguments(draw: Draw, *, batched: bool = True) -> tuple[Shape, int, Tensor]:
    """Shape of the data, number of batch axes, and tuples of indices behind them."""
    shape = draw(shapes(1, 4, largest=4))
    batch = draw(st.integers(0, len(shape) - 1)) if batched else 0
    depth = draw(st.integers(0 if batched else 1, len(shape) - batch))
    middle = draw(shapes(0, 2, largest=4))
    if batch + len(middle) == 0 and batched:
        middle = (draw(st.integers(0, 4)),)
    count = (*shape[:batch], *middle)
    sizes = shape[batch : batch + depth]
    assume(not math.prod(count) or 0 not in sizes)
    parts = [draw(indices(count, size)) for size in sizes]
    tuples_ = torch.stack(parts, -1) if parts else torch.zeros((*count, 0), dtype=torch.int64)
    return shape, batch, tuples_


def tuple_places(shape: Shape, batch: int, index: Tensor) -> Tensor:
    """For each tuple, the flat places of the slice that it means."""
    numbers_ = flat_numbers(shape)
    found = [
        numbers_[(*where[:batch], *index[where].tolist())]
        for where in itertools.product(*map(range, index.shape[:-1]))
    ]
    rest = shape[batch + index.shape[-1] :]
    if not found:
        return torch.zeros((*index.shape[:-1], *rest), dtype=torch.int64)
    return torch.stack(found).reshape((*index.shape[:-1], *rest))


@given(arguments=tuple_arguments(), data=st.data(), dtype=float_types, layout=layouts)
def test_gather_nd_grad(
    arguments: Any, data: Any, dtype: DataType, layout: int, device: str
) -> None:
    shape, batch, index = arguments
    places = tuple_places(shape, batch, index)
    case = row(
        "GatherNDGrad",
        [vector(*shape), fixed(index), data.draw(numbers(places.shape))],
        lambda _, __, update, **___: sum_of(update, places, shape),
        attributes={"batch_dims": batch},
    )
    judge_sum(case, dtype, device, layout)


@given(arguments=tuple_arguments(), data=st.data())
def test_gather_nd_grad_is_the_adjoint(arguments: Any, data: Any, device: str) -> None:
    shape, batch, index = arguments
    x = data.draw(numbers(shape)).to(device)
    forward = tuples.gather_nd(x, index.to(device), batch_dims=batch)
    dy = data.draw(numbers(forward.shape)).to(device)
    back = tuples.gather_nd_grad(
        list(shape), index.to(device), dy, batch_dims=batch, deterministic=True
    )
    torch.testing.assert_close((dy * forward).sum(), (back * x).sum())


@pytest.mark.parametrize("how", REDUCE)
@given(arguments=tuple_arguments(batched=False), data=st.data(), dtype=float_types, layout=layouts)
def test_scatter_nd(
    how: str, arguments: Any, data: Any, dtype: DataType, layout: int, device: str
) -> None:
    shape, _, index = arguments
    places = tuple_places(shape, 0, index)
    if how == "none":
        assume(len(set(places.reshape(-1).tolist())) == places.numel())
    case = row(
        "ScatterND",
        [data.draw(numbers(shape)), fixed(index), data.draw(numbers(places.shape))],
        lambda x, _, updates, **__: reduced(x, updates, places, how),
        attributes={"reduction": how},
        domain="",
    )
    judge_sum(case, dtype, device, layout)


@given(data=st.data(), shape=shapes(2, 4), dtype=float_types, layout=layouts)
def test_flatten_and_unpad(
    data: Any, shape: Shape, dtype: DataType, layout: int, device: str
) -> None:
    rows = shape[0] * shape[1]
    index = data.draw(indices((data.draw(st.integers(0, 9)) if rows else 0,), rows))
    case = row(
        "FlattenAndUnpad",
        [data.draw(numbers(shape)), fixed(index, data.draw(index_types))],
        lambda x, i: (x.reshape(rows, *shape[2:])[i.long()], torch.tensor(shape[:2])),
        outputs=2,
    )
    judge(case, dtype, device, layout)


@given(data=st.data(), shape=shapes(2, 4), dtype=float_types, layout=layouts)
def test_pad_and_unflatten(
    data: Any, shape: Shape, dtype: DataType, layout: int, device: str
) -> None:
    rows = shape[0] * shape[1]
    index = data.draw(indices((data.draw(st.integers(0, 9)) if rows else 0,), rows))
    places = flat_numbers((rows, *shape[2:]))[index]
    case = row(
        "PadAndUnflatten",
        [
            data.draw(numbers(places.shape)),
            fixed(index, data.draw(index_types)),
            vector(*shape[:2]),
        ],
        lambda x, *_: sum_of(x, places, shape),
    )
    judge_sum(case, dtype, device, layout)


@given(data=st.data(), shape=shapes(2, 4, smallest=1))
def test_unpadding_what_was_padded_gives_it_back(data: Any, shape: Shape, device: str) -> None:
    rows = shape[0] * shape[1]
    index = torch.randperm(rows, generator=torch.Generator().manual_seed(rows))
    index = index[: data.draw(st.integers(0, rows))].to(device)
    x = data.draw(numbers((len(index), *shape[2:]))).to(device)
    padded = pad_and_unflatten(x, index, list(shape[:2]))
    back, sizes = flatten_and_unpad(padded, index)
    assert torch.equal(back, x)
    assert sizes.tolist() == list(shape[:2])


WRONG: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "Gather": lambda x, i: gather(x, i),
    "ShrunkenGather": lambda x, i: shrunken_gather(x, i[: len(x)]),
    "GatherGrad": lambda x, i: gather_grad([len(x)], i, i.double()),
    "GatherElements": lambda x, i: gather_elements(x, i),
    "GatherElementsGrad": lambda x, i: gather_elements_grad(
        i.double(), [len(x)], i, deterministic=False
    ),
    "GatherND": lambda x, i: tuples.gather_nd(x, i[:, None]),
    "GatherNDGrad": lambda x, i: tuples.gather_nd_grad(
        [len(x)], i[:, None], i.double(), deterministic=False
    ),
    "ScatterElements": lambda x, i: scatter_elements(
        x, i, i.to(x.dtype), reduction="add", deterministic=False
    ),
    "ScatterND": lambda x, i: scatter_nd(
        x, i[:, None], i.to(x.dtype), reduction="add", deterministic=False
    ),
    "FlattenAndUnpad": lambda x, i: flatten_and_unpad(x[:, None], i),
    "PadAndUnflatten": lambda x, i: pad_and_unflatten(i.double(), i, [len(x), 1]),
}


@pytest.mark.parametrize("op", WRONG)
@given(
    size=st.integers(1, 7),
    beyond=st.integers(0, 2**31 - 8),
    below=st.booleans(),
    count=st.integers(1, 4),
    layout=layouts,
)
def test_an_index_out_of_range_is_named_and_touches_nothing(
    op: str, size: int, beyond: int, below: bool, count: int, layout: int, device: str
) -> None:
    wrong = -size - 1 - beyond if below else size + beyond
    index = place(torch.tensor([0] * min(count - 1, size - 1) + [wrong], device=device), layout)
    data = place(torch.arange(float(size), dtype=torch.float64, device=device), layout)
    if device == "cpu":
        with pytest.raises(ValueError, match=f"index {wrong} is out of range"):
            WRONG[op](data.tensor, index.tensor)
    else:
        WRONG[op](data.tensor, index.tensor)
        torch.cuda.synchronize()
    assert not data.touched() and not index.touched()


def test_the_gradient_of_slices_that_were_broadcast_is_summed():
    """As of a table of positions in artifacts of onnxruntime-training 1.19.2."""
    index, dy = torch.tensor([[2, 0, 2]]), torch.arange(24.0).reshape(4, 3, 2)
    expected = gather_grad([5, 2], index, dy.sum(0, keepdim=True))
    assert torch.equal(gather_grad([5, 2], index, dy), expected)
    with pytest.raises(ValueError, match=r"dY has 16 elements, a gather of \[1, 3\] indices"):
        gather_grad([5, 2], index, torch.zeros(4, 2, 2))
