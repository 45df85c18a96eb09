"""Several tensors as one: every collective is a single transfer of a flat buffer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def sizes(tensors: Sequence[Tensor]) -> list[int]:
    """Elements of each tensor."""
    return [tensor.numel() for tensor in tensors]


def joined(tensors: Sequence[Tensor], padded: int | None = None) -> Tensor:
    """The tensors' elements end to end in a buffer of its own, followed by zeros."""
    parts = [tensor.reshape(-1) for tensor in tensors]
    rest = 0 if padded is None else padded - sum(sizes(tensors))
    return torch.cat([*parts, parts[0].new_zeros(rest)])


def divided(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Undo ``joined``: views of the buffer in the tensors' shapes."""
    counts = sizes(tensors)
    parts = flat[: sum(counts)].split(counts)
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
