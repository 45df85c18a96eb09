"""Positions as rotations of pairs of features, with an angle for each feature or for each pair.

A pair is two features that are half a row apart, or that are neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.precision import store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, OWN


@kernel("Rotate", domain=OWN, T=FLOATS, C=FLOATS)
def rotate(
    x: Tensor, cos: Tensor, sin: Tensor, *, inverse: int = 0, interleaved: int = 0
) -> Tensor:
    """Y = x·cos + turned(x)·sin, where turned makes (-b, a) of a pair (a, b).

    Pairs are the halves of a row, or neighbours if they are interleaved. The inverse, which is the
    gradient of that, is x·cos - turned(x·sin). Angles of half as many are each of both of a pair.
    """
    _check(x, cos, sin)
    if _is_fast(x, cos, sin):
        found: Tensor = fast.load("rotate").rotate(x, cos, sin, bool(inverse), bool(interleaved))
        return found
    wide, size = widen(x), x.shape[-1]
    c, s = (_of_features(widen(t), size, interleaved) for t in (cos, sin))
    if inverse:
        return store(wide * c - turned(wide * s, interleaved), x)
    return store(wide * c + turned(wide, interleaved) * s, x)


def turned(x: Tensor, interleaved: int = 0) -> Tensor:
    """(-b, a) for the pairs a and b of the last axis."""
    if interleaved:
        return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def _of_features(angles: Tensor, size: int, interleaved: int) -> Tensor:
    """An angle for each feature."""
    if angles.shape[-1] == size:
        return angles
    return angles.repeat_interleave(2, -1) if interleaved else torch.cat([angles, angles], -1)


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
        fits = 0 < t.ndim <= x.ndim and t.shape[-1] in (x.shape[-1], x.shape[-1] // 2)
        stretched = zip(reversed(t.shape[:-1]), reversed(x.shape[:-1]), strict=False)
        if not fits or any(n not in (1, wanted) for n, wanted in stretched):
            raise ValueError(
                f"{name} has shape {tuple(t.shape)}, which is not that of X, {tuple(x.shape)}, "
                "or of its halves, or stretched to it along other axes than the last"
            )
