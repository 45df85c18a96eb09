"""BroadcastGradientArgs: over which axes a gradient must be summed back."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.registry import kernel
from onnxtrain.types import MS


@kernel("BroadcastGradientArgs", domain=MS, host=["a_shape", "b_shape"], host_out=[0, 1], outputs=2)
def broadcast_gradient_args(a_shape: list[int], b_shape: list[int]) -> tuple[Tensor, Tensor]:
    """Axes of the broadcast shape along which a (and b) were repeated, the last one first."""
    rank = max(len(a_shape), len(b_shape))
    a_axes: list[int] = []
    b_axes: list[int] = []
    for axis in reversed(range(rank)):
        a, b = (_size(shape, axis - rank) for shape in (a_shape, b_shape))
        if a is None or (a == 1 and b not in (1, None)):
            a_axes.append(axis)
        elif b is None or (b == 1 and a != 1):
            b_axes.append(axis)
        elif a != b:
            raise ValueError(
                f"shapes {a_shape} and {b_shape} do not broadcast: {a} and {b} at axis {axis}"
            )
    return torch.tensor(a_axes, dtype=torch.int64), torch.tensor(b_axes, dtype=torch.int64)


def _size(shape: list[int], axis: int) -> int | None:
    return shape[axis] if -axis <= len(shape) else None
