"""What autograd records in place of kernels that it cannot go back through, or only once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from onnxtrain.kernels.tensor.axes import axis_of
from onnxtrain.kernels.tensor.indices import wrapped
from onnxtrain.kernels.vision.sample_grad import grid_sample_by_pixels


def scatter(data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0) -> Tensor:
    """Scatter without writing in place."""
    axis = axis_of(axis, data.ndim)
    return data.scatter(axis, wrapped(indices, data.shape[axis]).long(), updates)


_ALWAYS: dict[tuple[str, str], Callable[..., Any]] = {("", "Scatter"): scatter}
_TWICE: dict[tuple[str, str], Callable[..., Any]] = {("", "GridSample"): grid_sample_by_pixels}


def recordable(domain: str, op: str, kernel: Callable[..., Any], order: int) -> Callable[..., Any]:
    """A function that computes what a kernel does and can be differentiated ``order`` times."""
    key = (domain, op)
    return _ALWAYS.get(key) or (_TWICE.get(key) if order > 1 else None) or kernel
