"""Options of a Trainer: what cannot be is refused where it is given, not where it would fail."""

from __future__ import annotations

from typing import Any

import torch

from onnxtrain.errors import LossError, OptionError
from onnxtrain.transforms.lora import LoraConfig

BATCH_NORM = ("train", "freeze")
LARGEST = torch.finfo(torch.float32).max
"""The largest number that a step can be given."""


def number_of(given: Any) -> float | None:
    """A number that float32 can hold; None if it is none."""
    try:
        number = float(given)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return None if isinstance(given, str) or not abs(number) <= LARGEST else number


def check_numbers(**options: Any) -> None:
    """Refuse options that are no numbers of at least 0.

    Raises:
        OptionError: if there is one.
    """
    for name, given in options.items():
        number = number_of(given)
        if number is None or number < 0:
            raise OptionError(f"{name} must be a finite number of at least 0, not {given!r}")


def check_options(
    batch_norm: Any, lora: Any, groups: Any, clip_grad_norm: Any, **numbers: Any
) -> None:
    """Refuse options that cannot be, before a model is read.

    Raises:
        OptionError: if there is one.
    """
    if batch_norm not in BATCH_NORM:
        raise OptionError(f"batch_norm is one of {', '.join(BATCH_NORM)}, not {batch_norm!r}")
    if lora is not None and not isinstance(lora, LoraConfig):
        raise OptionError(
            f"lora is a LoraConfig or None, not {lora!r}\n  give  lora=LoraConfig(rank=8), say"
        )
    if groups is not None and not hasattr(groups, "world_size"):
        raise OptionError(
            f"groups are those of distributed.torch_groups.connect, not {groups!r}\n"
            "  leave them out to train in one process"
        )
    check_numbers(**numbers)
    _check_limit(clip_grad_norm)


def _check_limit(limit: Any) -> None:
    """Gradients of a norm of 0 would train nothing; an infinite limit is none."""
    if limit is None or (isinstance(limit, float) and limit > LARGEST):
        return
    number = number_of(limit)
    if number is None or number <= 0:
        raise OptionError(
            f"clip_grad_norm must be a number above 0, not {limit!r}\n"
            "  leave it out to clip nothing"
        )


def check_loss(loss: Any) -> None:
    """Refuse what looks like a loss function but cannot be called with outputs and batch.

    Raises:
        LossError: if it is one.
    """
    if isinstance(loss, type):
        raise LossError(
            f"a loss is a name, an onnxblock or a function, not the class {loss.__name__}\n"
            f"  give an object of it, {loss.__name__}()"
        )
    if isinstance(loss, torch.nn.modules.loss._Loss):
        raise LossError(
            f"{type(loss).__name__} of torch takes two tensors, the function of a loss takes all "
            "outputs and the batch\n"
            "  give  loss=lambda outputs, batch: f(outputs['scores'], batch['labels'])  with your "
            "names, or a loss by name"
        )
