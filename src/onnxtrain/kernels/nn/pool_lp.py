"""Lp pooling and the pools over whole channels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.kernels.nn.pool import nothing_pooled, spatial
from onnxtrain.kernels.nn.window import resolve, sliding, window_axes
from onnxtrain.kernels.precision import acc, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS


@kernel("LpPool", T=FLOATS)
def lp_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    p: float = 2,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """y = (sum of |x|^p over each window)^(1/p)."""
    _check_power(p)
    sizes = spatial(x)
    window = resolve(sizes, kernel_shape, strides, dilations, pads, auto_pad)
    ceil_mode = 0 if auto_pad.startswith("SAME") else ceil_mode
    if (empty := nothing_pooled(x, window, ceil_mode)) is not None:
        return empty
    outputs = window.outputs(sizes, ceil_mode)
    views = sliding(widen(x), window, window.tail(sizes, outputs))
    norm: Tensor = torch.linalg.vector_norm(views, p, window_axes(window))
    return norm.to(x.dtype)


@kernel("GlobalLpPool", T=FLOATS)
def global_lp_pool(x: Tensor, *, p: float = 2) -> Tensor:
    """y = (sum of |x|^p over the spatial axes)^(1/p)."""
    _check_power(p)
    norm: Tensor = torch.linalg.vector_norm(x, p, _axes(x), keepdim=True, dtype=acc(x.dtype))
    return norm.to(x.dtype)


@kernel("GlobalAveragePool", T=FLOATS)
def global_average_pool(x: Tensor) -> Tensor:
    """y = mean over the spatial axes."""
    return x.mean(_axes(x), keepdim=True, dtype=acc(x.dtype)).to(x.dtype)


@kernel("GlobalMaxPool", T=FLOATS)
def global_max_pool(x: Tensor) -> Tensor:
    """y = maximum over the spatial axes."""
    axes = _axes(x)
    if not x.numel():
        if all(x.shape[:2]):
            raise ValueError(f"there is nothing to pool in a tensor of shape {tuple(x.shape)}")
        return x.new_empty((*x.shape[:2], *[1] * len(axes)))
    return x.amax(axes, keepdim=True)


def _check_power(p: float) -> None:
    if p < 1:
        raise ValueError(f"p is {p}, must be at least 1")


def _axes(x: Tensor) -> list[int]:
    if x.ndim < 3:
        raise ValueError(f"a pool needs a spatial axis, its input has shape {tuple(x.shape)}")
    return list(range(2, x.ndim))
