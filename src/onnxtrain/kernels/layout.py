"""In which order the elements of images lie in memory."""

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
