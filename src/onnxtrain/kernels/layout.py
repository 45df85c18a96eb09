"""In which order the elements of images lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor


def layout_of(x: Tensor) -> torch.memory_format:
    """Whether images lie with their channels last; all others are made to have them first."""
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format
