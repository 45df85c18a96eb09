"""Batches: tensors by name, as a step takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from onnxtrain.errors import FeedError

Batch = Mapping[str, Any]


def pick(batch: Batch, names: Sequence[str]) -> list[Any]:
    """The named values of a batch, in order.

    Raises:
        FeedError: if one is missing.
    """
    if not isinstance(batch, Mapping):
        raise FeedError(
            f"a batch is a mapping from names to values, not a {type(batch).__name__}\n"
            f"  it needs  {', '.join(names)}"
        )
    if missing := [name for name in names if name not in batch]:
        raise FeedError(
            f"the batch has no {', '.join(map(repr, missing))}\n"
            f"  it has    {', '.join(map(str, batch)) or 'nothing'}\n"
            f"  it needs  {', '.join(names)}"
        )
    return [batch[name] for name in names]


def refuse_others(batch: Batch, names: Sequence[str]) -> None:
    """Refuse values that nobody takes: a misspelt name should not go unnoticed.

    Raises:
        FeedError: if there is one.
    """
    if unknown := [str(name) for name in batch if name not in names]:
        raise FeedError(
            f"the batch has {', '.join(map(repr, unknown))}, which the step does not take\n"
            f"  it takes  {', '.join(names)}"
        )


def on_device(batch: Batch, device: torch.device) -> dict[str, Any]:
    """The batch for a loss function: arrays and numbers as tensors, anything else as it is."""
    return {name: _as_tensor(value, device) for name, value in batch.items()}


def _as_tensor(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if not isinstance(value, (np.ndarray, np.generic, list, tuple, bool, int, float)):
        return value
    try:
        return torch.as_tensor(value).to(device)
    except (TypeError, ValueError, RuntimeError):
        return value


def samples(batch: Batch) -> int:
    """How many samples a batch has: the size of the first value that has one.

    Raises:
        FeedError: if it is no batch.
    """
    if not isinstance(batch, Mapping):
        raise FeedError(
            f"a batch is a mapping from names to values, not a {type(batch).__name__}\n"
            "  several batches are a list of such mappings, also if there is only one: [batch]"
        )
    for value in batch.values():
        if getattr(value, "ndim", 0) or isinstance(value, (list, tuple)):
            return len(value)
    return 1
