"""Sums over axes, the norm over many tensors, and what broadcasting must sum back."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from kernels.properties.judge import judge
from kernels.properties.strategies import (
    TYPES,
    Shape,
    axes_lists,
    broadcast_to,
    flags,
    float_types,
    floats,
    layouts,
    numbers,
    row,
    shapes,
    vector,
)
from onnxtrain.kernels.reduction.broadcast import broadcast_gradient_args
from onnxtrain.kernels.reduction.norm import all_l2
from onnxtrain.kernels.reduction.reduce import reduce_sum_training
from onnxtrain.types import DataType

Tensor = torch.Tensor
SUMMED = st.sampled_from([*TYPES[:3], DataType.INT32, DataType.INT64, DataType.UINT32])


def over(x: Tensor, axes: Any, keepdims: int, noop: int, function: Any) -> Tensor:
    """A reduction along named axes, all of them by default, one axis after the other."""
    names = sorted({int(a) % x.ndim for a in axes} if x.ndim else ())
    if not names and noop:
        return function(x.unsqueeze(0), 0)
    names = names or list(range(x.ndim))
    if not names:
        return function(x.unsqueeze(0), 0)
    # All reduced axes become one at the end, so that a norm or logarithm is taken once.
    rest = [i for i in range(x.ndim) if i not in names]
    joined = x.permute(*rest, *names).flatten(len(rest))
    result = function(joined, -1)
    shape = [1 if i in names else n for i, n in enumerate(x.shape)]
    return result.reshape(shape) if keepdims else result


@given(data=st.data(), shape=shapes(), keep=flags, noop=flags, dtype=SUMMED, layout=layouts)
def test_reduce_sum_training(
    data: Any, shape: Shape, keep: int, noop: int, dtype: DataType, layout: int, device: str
) -> None:
    names = data.draw(axes_lists(len(shape)))
    case = row(
        "ReduceSumTraining",
        [data.draw(numbers(shape, scale=3.0)).abs(), vector(*names)],
        lambda x, axes, keepdims, noop_with_empty_axes: over(
            x, axes, keepdims, noop_with_empty_axes, torch.sum
        ),
        attributes={"keepdims": keep, "noop_with_empty_axes": noop},
    )
    judge(case, dtype, device, layout, exact=False)


REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "ReduceSum": torch.sum,
    "ReduceMean": torch.mean,
    "ReduceMax": torch.amax,
    "ReduceMin": torch.amin,
    "ReduceProd": torch.prod,
    "ReduceL1": lambda x, dim: x.abs().sum(dim),
    "ReduceL2": lambda x, dim: x.square().sum(dim).sqrt(),
    "ReduceSumSquare": lambda x, dim: x.square().sum(dim),
    "ReduceLogSumExp": lambda x, dim: x.exp().sum(dim).log(),
}
TERMS = {
    **dict.fromkeys(REDUCTIONS, lambda x, dim: x.abs().sum(dim)),
    "ReduceLogSumExp": lambda x, dim: x.abs().sum(dim) + 1,
}
"""Magnitudes of what is added up; a logarithm near 0 is as exact as its argument near 1."""


@pytest.mark.parametrize("op", REDUCTIONS)
@given(
    data=st.data(),
    shape=shapes(smallest=1, high=4, largest=4),
    keep=flags,
    noop=flags,
    dtype=float_types,
    layout=layouts,
)
def test_reductions(
    op: str,
    data: Any,
    shape: Shape,
    keep: int,
    noop: int,
    dtype: DataType,
    layout: int,
    device: str,
) -> None:
    names = data.draw(axes_lists(len(shape)))

    def by(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, axes, keepdims, noop_with_empty_axes: over(
            x, axes, keepdims, noop_with_empty_axes, function
        )

    case = row(
        op,
        [data.draw(numbers(shape)), vector(*names)],
        by(REDUCTIONS[op]),
        attributes={"keepdims": keep, "noop_with_empty_axes": noop},
        domain="",
        opset=18,
    )
    exact = op in ("ReduceMax", "ReduceMin")
    judge(case, dtype, device, layout, exact=exact, terms=None if exact else by(TERMS[op]))


@given(data=st.data(), shape=shapes(1))
def test_sums_over_axes_one_by_one_or_at_once(data: Any, shape: Shape, device: str) -> None:
    names = data.draw(axes_lists(len(shape), smallest=1))
    x = data.draw(numbers(shape)).to(device)
    at_once = reduce_sum_training(x, list(names))
    for name in names:
        x = reduce_sum_training(x, [name])
    torch.testing.assert_close(x, at_once)


@given(
    data=st.data(),
    sizes=st.lists(shapes(), min_size=1, max_size=6),
    scale=st.sampled_from([1.0, 1e-3, 200.0]),
    dtype=float_types,
    layout=layouts,
)
def test_reduce_all_l2(
    data: Any, sizes: list[Shape], scale: float, dtype: DataType, layout: int, device: str
) -> None:
    inputs = [data.draw(numbers(shape, scale=scale)) for shape in sizes]
    case = row(
        "ReduceAllL2",
        inputs,
        lambda *xs: torch.cat([x.double().reshape(-1) for x in xs]).square().sum().sqrt(),
    )
    judge(case, dtype, device, layout, exact=False)


@given(data=st.data(), sizes=st.lists(shapes(), min_size=1, max_size=6), factor=floats(0.125, 8))
def test_the_norm_of_many_is_that_of_one(
    data: Any, sizes: list[Shape], factor: float, device: str
) -> None:
    xs = [data.draw(numbers(shape)).to(device) for shape in sizes]
    together = torch.cat([x.reshape(-1) for x in xs])
    norm = all_l2(*xs)
    torch.testing.assert_close(norm, all_l2(together))
    torch.testing.assert_close(all_l2(*[x * -factor for x in xs]), norm * factor)


@given(data=st.data(), shape=shapes())
def test_broadcast_gradient_args(data: Any, shape: Shape) -> None:
    a, b = (data.draw(broadcast_to(shape)) for _ in range(2))
    assume(0 not in shape)
    out = torch.broadcast_shapes(a, b)
    dy = data.draw(numbers(out))
    for own, names in zip((a, b), broadcast_gradient_args(list(a), list(b)), strict=True):
        back = reduce_sum_training(dy, names.tolist(), noop_with_empty_axes=1)
        torch.testing.assert_close(back.reshape(own), dy.sum_to_size(own))
        assert names.tolist() == sorted(names.tolist(), reverse=True)
