"""What a trainer says of the parameters of a file."""

import warnings

import followed
import torch

from onnxtrain import Trainer

SHOWN = "exporter computed tensors from parameters"


def exported(module: torch.nn.Module, **options: bool) -> bytes:
    """A file of a module that takes two sequences of four rows of eight numbers."""
    return followed.exported(module, torch.rand(2, 4, 8), **options)


def told(model: bytes, **options: object) -> list[warnings.WarningMessage]:
    """All warnings of a trainer of a model."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        Trainer(model, loss="mse", optimizer="sgd", lr=0.1, device="cpu", **options)  # type: ignore[arg-type]
    return list(found)


def warned(model: bytes, **options: object) -> list[warnings.WarningMessage]:
    """Those of parameters of which only results are there."""
    return [one for one in told(model, **options) if SHOWN in str(one.message)]
