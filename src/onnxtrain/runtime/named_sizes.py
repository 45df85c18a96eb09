"""Sizes that a model gives one name, and what they are in a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from onnxtrain.runtime.plan import Argument


def contradiction(arguments: Sequence[Argument], given: Sequence[Any]) -> str:
    """A line that tells which inputs give one name two sizes; empty if none do.

    Plans take such sizes for equal, as ONNX does.
    """
    seen: dict[str, tuple[str, int]] = {}
    for argument, tensor in zip(arguments, given, strict=False):
        if argument.shape is None or not isinstance(tensor, torch.Tensor):
            continue
        for dim, size in zip(argument.shape, tensor.shape, strict=False):
            name = None if isinstance(dim, int) else dim.value
            if name is None:
                continue
            other, before = seen.setdefault(name, (argument.name, size))
            if before != size:
                return (
                    f"\n  sizes   '{name}' is {before} in '{other}' and {size} in "
                    f"'{argument.name}': sizes of one name are equal, name them apart in the model"
                )
    return ""
