"""Elements in another order: blocks and depth, reversed sequences, columns and images."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from onnxtrain.kernels.precision import COMPUTED, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.axes import axis_of
from onnxtrain.kernels.tensor.movable import movable


@kernel("DepthToSpace", view="input")
def depth_to_space(input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Channel (i, j, c), or (c, i, j) in mode CRD, becomes pixel (i, j) of every block."""
    b, c, h, w = _image(input, mode)
    n = blocksize
    if c % (n * n):
        raise ValueError(f"{c} channels cannot be spread over blocks of {n}x{n}")
    depth = c // (n * n)
    if mode == "DCR":
        split = input.reshape(b, n, n, depth, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        split = input.reshape(b, depth, n, n, h, w).permute(0, 1, 4, 2, 5, 3)
    return split.reshape(b, depth, h * n, w * n)


@kernel("SpaceToDepth", view="input")
def space_to_depth(input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Blocks stacked into channels: the inverse of DepthToSpace."""
    b, c, h, w = _image(input, mode)
    n = blocksize
    if h % n or w % n:
        raise ValueError(f"an image of {h}x{w} has no whole number of blocks of {n}x{n}")
    split = input.reshape(b, c, h // n, n, w // n, n)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return split.permute(order).reshape(b, c * n * n, h // n, w // n)


def _image(x: Tensor, mode: str) -> torch.Size:
    if x.ndim != 4:
        raise ValueError(f"input must have shape [N,C,H,W], got {list(x.shape)}")
    if mode not in ("DCR", "CRD"):
        raise ValueError(f"mode '{mode}' is not one of DCR, CRD")
    return x.shape


@kernel("ReverseSequence", since=10)
def reverse_sequence(
    input: Tensor, sequence_lens: Tensor, *, batch_axis: int = 1, time_axis: int = 0
) -> Tensor:
    """The first sequence_lens[b] steps of batch entry b in reverse, the others as they are."""
    axes = axis_of(time_axis, input.ndim), axis_of(batch_axis, input.ndim)
    x = movable(input).movedim(axes, (0, 1))
    step = torch.arange(x.shape[0], device=x.device)[:, None]
    index = torch.where(step < sequence_lens, sequence_lens - 1 - step, step)
    # Lengths beyond the number of steps must not read outside of the input.
    index = index.clamp(0, max(x.shape[0] - 1, 0))
    entry = torch.arange(x.shape[1], device=x.device)
    return x[index, entry].movedim((0, 1), axes).view(input.dtype)


@kernel("Col2Im", since=18, host=["image_shape", "block_shape"], T=COMPUTED)
def col2im(
    input: Tensor,
    image_shape: list[int],
    block_shape: list[int],
    *,
    dilations: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """The image that is the sum of all blocks, each put back where it was cut out."""
    rank = len(image_shape)
    dilations, strides = dilations or (1,) * rank, strides or (1,) * rank
    pads = pads or (0,) * (2 * rank)
    padded = [pads[i] + n + pads[rank + i] for i, n in enumerate(image_shape)]
    counts = [
        (padded[i] - dilations[i] * (block_shape[i] - 1) - 1) // strides[i] + 1 for i in range(rank)
    ]
    batch, channels = input.shape[0], input.shape[1] // math.prod(block_shape)
    blocks = widen(input).reshape(batch, channels, *block_shape, *counts)
    image = blocks.new_zeros(batch, channels, *padded)
    everything = slice(None), slice(None)
    for offset in itertools.product(*map(range, block_shape)):
        places = [
            slice(k * d, k * d + (n - 1) * s + 1, s)
            for k, d, n, s in zip(offset, dilations, counts, strides, strict=True)
        ]
        image[everything + tuple(places)] += blocks[everything + offset]
    inside = tuple(slice(pads[i], pads[i] + n) for i, n in enumerate(image_shape))
    return image[everything + inside].to(input.dtype)
