"""Options of a Trainer: what cannot be is refused where it is given, not where it would fail."""

from __future__ import annotations

from typing import Any

import torch

from onnxtrain.errors import LossError, OptionError
from onnxtrain.onnxblock.numbers import check_limit, check_number
from onnxtrain.transforms.lora import LoraConfig

BATCH_NORM = ("train", "freeze")


def check_numbers(**options: Any) -> None:
    """Refuse options that are no numbers of at least 0.

    Raises:
        OptionError: if there is one.
    """
    for name, given in options.items():
        check_number(name, given)


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
    if clip_grad_norm is not None:
        check_limit("clip_grad_norm", clip_grad_norm)


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
