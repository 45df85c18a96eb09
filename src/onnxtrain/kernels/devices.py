"""What a GPU can do."""

from __future__ import annotations

import functools

import torch

OTHER = (0, 0)
"""Stands for the capability of a GPU of another maker than NVIDIA."""


@functools.cache
def capability(index: int) -> tuple[int, int]:
    """The compute capability of a GPU, by its number."""
    return OTHER if torch.version.hip else torch.cuda.get_device_capability(index)
