"""Points of rows, and the gradients there, which several tests compare with something else."""

import dataclasses

import torch

from onnxtrain.testing import gradcheck
from onnxtrain.testing.case import Case
from onnxtrain.testing.gradcheck import Point
from onnxtrain.types import DataType

_POINTS: dict[tuple[int, DataType], Point] = {}
_GRADIENTS: dict[tuple[int, DataType, tuple[int, ...]], list[torch.Tensor]] = {}


def drawn(case: Case, dtype: DataType) -> Point:
    """The point of a row's own inputs in one type; rows are those of the table, which stay."""
    key = (id(case), dtype)
    if key in _POINTS:
        return dataclasses.replace(_POINTS[key])
    at = gradcheck.drawn(case, dtype)
    _POINTS[key] = dataclasses.replace(at)  # without the session that it has made
    return at


def by_graph(at: Point, dtype: DataType) -> list[torch.Tensor]:
    """The gradients that the gradient graph gives at such a point, or at one of fewer outputs."""
    key = (id(at.case), dtype, tuple(at.seeds))
    if key not in _GRADIENTS:
        _GRADIENTS[key] = gradcheck.by_graph(at)
    return _GRADIENTS[key]
