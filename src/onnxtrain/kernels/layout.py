"""In which order the elements of images lie in memory, and where complex numbers may."""

from __future__ import annotations

import torch
from torch import Tensor

IMAGES = 4


def layout_of(x: Tensor) -> torch.memory_format:
    """Whether images lie with their channels last; all others are made to have them first."""
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format


def in_one_order(*tensors: Tensor) -> list[Tensor] | None:
    """Tensors of one shape as they lie in memory, if all lie alike and have no gaps; or None."""
    if all(t.is_contiguous() for t in tensors):
        return list(tensors)
    turned = [t.permute(0, 2, 3, 1) for t in tensors if t.ndim == IMAGES]
    same = len(turned) == len(tensors) and all(t.is_contiguous() for t in turned)
    return turned if same else None


def complex_of(x: Tensor) -> Tensor:
    """The complex numbers whose two parts are the last axis, copied where these lie otherwise.

    They do in a part of a tensor that begins at an odd number, too. A tensor without elements
    counts as contiguous whatever its strides are.
    """
    if not x.numel():
        return torch.view_as_complex(x.new_empty(x.shape))
    dense = x.is_contiguous() and x.storage_offset() % 2 == 0
    return torch.view_as_complex(x if dense else x.clone(memory_format=torch.contiguous_format))
