"""Positions as rotations of the halves of features, with an angle for each of them."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.precision import store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, OWN


@kernel("Rotate", domain=OWN, T=FLOATS, C=FLOATS)
def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, inverse: int = 0) -> Tensor:
    """Y = x·cos + turned(x)·sin, where turned swaps the halves of a row: (a, b) to (-b, a).

    The inverse, which is the gradient of that, is x·cos - turned(x·sin).
    """
    _check(x, cos, sin)
    if _is_fast(x, cos, sin):
        found: Tensor = fast.load("rotate").rotate(x, cos, sin, bool(inverse))
        return found
    wide, c, s = widen(x), widen(cos), widen(sin)
    y = wide * c - turned(wide * s) if inverse else wide * c + turned(wide) * s
    return store(y, x)


def turned(x: Tensor) -> Tensor:
    """(-b, a) for the halves a and b of the last axis."""
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def _is_fast(*tensors: Tensor) -> bool:
    """Whether one Triton launch serves these, whose rows may lie anywhere."""
    x = tensors[0]
    if not x.is_cuda or not x.numel() or not fast.serves(x.get_device()):
        return False
    if any(t.dtype not in fast.TYPES for t in tensors):
        return False
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return False
    return bool(fast.load("rotate").takes(*tensors))


def _check(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    if x.ndim == 0 or x.shape[-1] % 2:
        raise ValueError(f"the last axis of X has no halves: its shape is {tuple(x.shape)}")
    for name, t in (("cos", cos), ("sin", sin)):
        fits = t.ndim <= x.ndim and t.shape[-1:] == x.shape[-1:]
        stretched = zip(reversed(t.shape), reversed(x.shape), strict=False)
        if not fits or any(n not in (1, wanted) for n, wanted in stretched):
            raise ValueError(
                f"{name} has shape {tuple(t.shape)}, which is not that of X, {tuple(x.shape)}, "
                "or stretched to it along other axes than the last"
            )
