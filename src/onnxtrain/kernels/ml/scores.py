"""What the models share: attributes as tensors, transforms of scores, labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onnxtrain.kernels.rehearsal import remembered
from onnxtrain.types import DataType

Numbers = Sequence[float] | Tensor
"""Weights: an attribute of the node, or a tensor in its place."""
NUMBERS = frozenset({DataType.FLOAT, DataType.DOUBLE, DataType.INT64, DataType.INT32})


@remembered(64)
def constant(values: tuple[float, ...], like: tuple[torch.dtype, torch.device]) -> Tensor:
    """Numbers of an attribute as a tensor, which nobody may change."""
    dtype, device = like
    return torch.tensor(values, dtype=dtype, device=device)


def numbers(values: Numbers, like: tuple[torch.dtype, torch.device]) -> Tensor:
    """Weights as a tensor: those of an attribute, or those that are trained."""
    if not isinstance(values, Tensor):
        return constant(tuple(values), like)
    if values.device != like[1]:  # an attribute, which is copied to the device once
        return constant(tuple(values.reshape(-1).tolist()), like)
    return values.to(like[0])


def given_type(values: Numbers | None) -> torch.dtype:
    """The type of scores that weights make: float, unless they are trained in another."""
    return values.dtype if isinstance(values, Tensor) else torch.float32


def real(x: Tensor) -> Tensor:
    """The features as floating point numbers: double stays, the rest becomes float."""
    return x if x.dtype is torch.float64 else x.to(torch.float32)


def like(x: Tensor) -> tuple[torch.dtype, torch.device]:
    """Type and device of a tensor, for ``constant``."""
    return x.dtype, x.device


def transformed(scores: Tensor, how: str) -> Tensor:
    """Scores after the transform that a model names."""
    if how == "NONE":
        return scores
    if how == "LOGISTIC":
        return torch.sigmoid(scores)
    if how == "SOFTMAX":
        return torch.softmax(scores, -1)
    if how == "SOFTMAX_ZERO":
        return _softmax_zero(scores)
    if how == "PROBIT":
        quantiles: Tensor = torch.special.ndtri(scores)
        return quantiles
    raise ValueError(f"unknown post_transform '{how}'")


def _softmax_zero(scores: Tensor) -> Tensor:
    """Softmax in which a score of 0 stays 0."""
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    powers = torch.where(scores.abs() > 1e-7, powers, 0.0)
    total = powers.sum(-1, keepdim=True)
    return torch.where(total == 0, 0.5, powers / total)


def labelled(index: Tensor, ints: Sequence[int] | None, strings: Sequence[str] | None) -> Any:
    """Class labels for the indices of classes."""
    if strings:
        return np.array(strings, object)[index.cpu().numpy()]
    if ints:
        return constant(tuple(ints), (torch.int64, index.device))[index]
    return index
