"""Max, Min, Sum and Mean of any number of tensors, with broadcasting."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from onnxtrain.kernels.precision import COMPUTED, WIDE_UNSIGNED, from_order, in_order, store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS


@kernel("Max", since=6, T=COMPUTED)
def max_(*xs: Tensor) -> Tensor:
    """Y = max(x₀, x₁, …); NaN if one of them is."""
    return functools.reduce(torch.maximum, xs[1:], xs[0]) if len(xs) > 1 else xs[0].clone()


@kernel("Max", since=6, T=WIDE_UNSIGNED)
def max_unsigned(*xs: Tensor) -> Tensor:
    """Y = max(x₀, x₁, …)."""
    return from_order(max_(*map(in_order, xs)), xs[0].dtype)


@kernel("Min", since=6, T=COMPUTED)
def min_(*xs: Tensor) -> Tensor:
    """Y = min(x₀, x₁, …); NaN if one of them is."""
    return functools.reduce(torch.minimum, xs[1:], xs[0]) if len(xs) > 1 else xs[0].clone()


@kernel("Min", since=6, T=WIDE_UNSIGNED)
def min_unsigned(*xs: Tensor) -> Tensor:
    """Y = min(x₀, x₁, …)."""
    return from_order(min_(*map(in_order, xs)), xs[0].dtype)


@kernel("Sum", since=6, T=FLOATS)
def sum_(*xs: Tensor) -> Tensor:
    """Y = x₀ + x₁ + …."""
    if len(xs) == 1:
        return xs[0].clone()
    if len(xs) == 2:
        return torch.add(*xs)
    return store(functools.reduce(torch.add, map(widen, xs)), xs[0])


@kernel("Mean", since=6, T=FLOATS)
def mean(*xs: Tensor) -> Tensor:
    """Y = (x₀ + x₁ + …) / n."""
    return store(functools.reduce(torch.add, map(widen, xs)) / len(xs), xs[0])
