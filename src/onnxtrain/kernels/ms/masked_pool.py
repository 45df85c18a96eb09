"""Maximum pooling of places that a mask opens."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.kernels.nn.pool import spatial
from onnxtrain.kernels.nn.window import pad, resolve, sliding
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS


@kernel("MaxpoolWithMask", domain=MS, T=FLOATS)
def maxpool_with_mask(
    x: Tensor,
    m: Tensor,
    *,
    auto_pad: str = "NOTSET",
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """y = maximum of each window, whose rows end before the first place where the mask is 0.

    A row runs along the last axis. A window without any place has the lowest number of the type.
    """
    sizes = spatial(x)
    if not kernel_shape:
        raise ValueError(f"kernel_shape is missing: {len(sizes)} sizes, one for each pooled axis")
    # an empty word is what onnxruntime writes for NOTSET
    window = resolve(sizes, kernel_shape, strides, None, pads, auto_pad or "NOTSET")
    inside = dataclasses.replace(window, begin=(0,) * len(sizes))
    lowest = torch.finfo(x.dtype).min
    mask = pad(_fitting(m, x), window.begin, window.end, 1)
    closed = (sliding(mask, inside, inside.begin) == 0).cumsum(-1) > 0
    padded = pad(x, window.begin, window.end, lowest)
    places = sliding(padded, inside, inside.begin).masked_fill(closed, lowest)
    return places.flatten(-len(sizes)).max(-1).values


def _fitting(mask: Tensor, x: Tensor) -> Tensor:
    """The mask of each sample and channel."""
    n, c, *sizes = x.shape
    allowed = [[n, c, *sizes], [1, c, *sizes], [1, 1, *sizes]]
    if list(mask.shape) not in allowed:
        raise ValueError(
            f"the mask has shape {list(mask.shape)}, but for x {list(x.shape)} it must be one of "
            f"{', '.join(map(str, allowed))}"
        )
    return mask.expand(x.shape)
