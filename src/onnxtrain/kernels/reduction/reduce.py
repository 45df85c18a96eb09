"""The Reduce operators: sums, means, extremes, products and norms over some of the axes.

The axes are an attribute in older opset versions and an input read by the host in newer ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.precision import (
    acc,
    as_int64,
    from_int64,
    from_order,
    in_order,
    store,
    widen,
)
from onnxtrain.kernels.reduction.norm import FEW, l2_of
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.axes import axis_of
from onnxtrain.types import BOOL, MS, NUMBERS, DataType

_Dims = tuple[int, ...]
_Reduction = Callable[[Tensor, _Dims, bool], Tensor]

_SUMMED = NUMBERS - {DataType.INT8, DataType.INT16, DataType.UINT8, DataType.UINT16}
_COMPARED = (NUMBERS - {DataType.INT16, DataType.UINT16}) | BOOL


def sum_(x: Tensor, dims: _Dims, keep: bool) -> Tensor:
    """Σ x; 16-bit numbers are summed in float32 by torch itself."""
    if x.is_floating_point():
        if x.is_cuda and _leading(x, dims) and fast.ready(x):
            quick, columns = fast.load("columns"), math.prod(x.shape[len(dims) :])
            if quick.takes(x.numel() // columns, columns):
                total: Tensor = quick.column_sums(x, columns)
                return total.view(_reduced_shape(x, dims, keep))
        return torch.sum(x, dims, keep)
    return from_int64(torch.sum(as_int64(x), dims, keep), x.dtype)


def _leading(x: Tensor, dims: _Dims) -> bool:
    """Whether rows are added up that are neither short nor most of the tensor."""
    return dims == tuple(range(len(dims))) and 64 <= math.prod(x.shape[len(dims) :]) <= 1 << 16


def mean(x: Tensor, dims: _Dims, keep: bool) -> Tensor:
    """Σ x / n; whole numbers are cut off towards 0."""
    if x.is_floating_point():
        return torch.mean(x, dims, keep)
    return torch.mean(x.to(torch.float64), dims, keep).to(x.dtype)


def max_(x: Tensor, dims: _Dims, keep: bool) -> Tensor:
    """The largest x; of nothing, the smallest value of the type."""
    return _extreme(torch.amax, x, dims, keep)


def min_(x: Tensor, dims: _Dims, keep: bool) -> Tensor:
    """The smallest x; of nothing, the largest value of the type."""
    return _extreme(torch.amin, x, dims, keep)


def _extreme(function: Callable[..., Tensor], x: Tensor, dims: _Dims, keep: bool) -> Tensor:
    if any(x.shape[dim] == 0 for dim in dims):
        smallest, largest = _range(x.dtype)
        limit = smallest if function is torch.amax else largest
        return x.new_full(_reduced_shape(x, dims, keep), limit)
    values = x.to(torch.uint8) if x.dtype is torch.bool else in_order(x)
    return from_order(function(values, dims, keep), x.dtype)


def _range(dtype: torch.dtype) -> tuple[float, float]:
    """The smallest and the largest value of a type."""
    if dtype is torch.bool:
        return False, True
    if dtype.is_floating_point:
        return -torch.inf, torch.inf
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


def _reduced_shape(x: Tensor, dims: _Dims, keep: bool) -> list[int]:
    if keep:
        return [1 if i in dims else size for i, size in enumerate(x.shape)]
    return [size for i, size in enumerate(x.shape) if i not in dims]


def product(x: Tensor, dims: _Dims, keep: bool) -> Tensor:
    """Π x."""
    values = widen(x) if x.is_floating_point() else as_int64(x)
    for dim in reversed(dims):
        values = torch.prod(values, dim, keep)
    return store(values, x) if x.is_floating_point() else from_int64(values, x.dtype)


def l1(x: Tensor, dims: _Dims, keep: bool) -> Tensor:
    """Σ |x|."""
    return sum_(x, dims, keep) if not x.dtype.is_signed else _sum_of(torch.abs, x, dims, keep)


def sum_square(x: Tensor, dims: _Dims, keep: bool) -> Tensor:
    """Σ x²."""
    return _sum_of(torch.square, x, dims, keep)


def _sum_of(function: Callable[[Tensor], Tensor], x: Tensor, dims: _Dims, keep: bool) -> Tensor:
    if x.is_floating_point():
        return store(torch.sum(function(widen(x)), dims, keep), x)
    return from_int64(torch.sum(function(as_int64(x)), dims, keep), x.dtype)


def l2(x: Tensor, dims: _Dims, keep: bool) -> Tensor:
    """√(Σ x²)."""
    dtype = acc(x.dtype) if x.is_floating_point() else torch.float64
    values = x if x.is_floating_point() else x.to(dtype)
    if x.device.type != "cpu" or math.prod(x.shape[dim] for dim in dims) <= FEW:
        return store(torch.linalg.vector_norm(values, 2, dims, keep, dtype=dtype), x)
    if len(dims) < x.ndim:
        return store(torch.sum(values.to(dtype).square(), dims, keep).sqrt(), x)
    return store(l2_of([values], dtype).reshape([1] * x.ndim if keep else []), x)


def log_sum(x: Tensor, dims: _Dims, keep: bool) -> Tensor:
    """ln Σ x."""
    return store(torch.log(torch.sum(_as_float(x), dims, keep)), x)


def log_sum_exp(x: Tensor, dims: _Dims, keep: bool) -> Tensor:
    """ln Σ eˣ."""
    return store(torch.logsumexp(_as_float(x), dims, keep), x)


def _as_float(x: Tensor) -> Tensor:
    return widen(x) if x.is_floating_point() else x.to(torch.float64)


def reduce(
    function: _Reduction, x: Tensor, axes: Sequence[int], keepdims: int, *, noop: bool = False
) -> Tensor:
    """Apply a reduction over axes; over all of them, or none if ``noop``, when none is named."""
    if x.ndim == 0 or (noop and not axes):
        # Over an axis of length 1, what is not a reduction (a logarithm, a square) still happens.
        return function(x.unsqueeze(0), (0,), False)
    dims = sorted({axis_of(axis, x.ndim) for axis in axes}) or range(x.ndim)
    return function(x, tuple(dims), bool(keepdims))


def _declare(op: str, function: _Reduction, types: frozenset[DataType], input_since: int) -> None:
    @kernel(op, until=input_since - 1, T=types)
    def reduce_attribute(x: Tensor, *, axes: tuple[int, ...] = (), keepdims: int = 1) -> Tensor:
        return reduce(function, x, axes, keepdims)

    @kernel(op, since=input_since, T=types, host=["axes"])
    def reduce_input(
        x: Tensor,
        axes: list[int] | None = None,
        *,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Tensor:
        return reduce(function, x, axes or (), keepdims, noop=bool(noop_with_empty_axes))

    reduce_attribute.__name__ = reduce_input.__name__ = op.lower()


_declare("ReduceSum", sum_, _SUMMED, input_since=13)
_declare("ReduceMean", mean, _SUMMED, input_since=18)
_declare("ReduceMax", max_, _COMPARED, input_since=18)
_declare("ReduceMin", min_, _COMPARED, input_since=18)
_declare("ReduceProd", product, _SUMMED, input_since=18)
_declare("ReduceL1", l1, _SUMMED, input_since=18)
_declare("ReduceL2", l2, _SUMMED, input_since=18)
_declare("ReduceLogSum", log_sum, _SUMMED, input_since=18)
_declare("ReduceLogSumExp", log_sum_exp, _SUMMED, input_since=18)
_declare("ReduceSumSquare", sum_square, _SUMMED, input_since=18)


@kernel("ReduceSumTraining", domain=MS, T=_SUMMED, host=["axes"])
def reduce_sum_training(
    x: Tensor, axes: list[int], *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """Σ x over axes that may be computed while the graph runs."""
    return reduce(sum_, x, axes, keepdims, noop=bool(noop_with_empty_axes))
