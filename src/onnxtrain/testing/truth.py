"""What a row's outputs should be, and how far off torch itself is."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx.reference
import torch

from onnxtrain.kernels.dtypes import array_of, tensor_of, text_of
from onnxtrain.runtime.render import parameter
from onnxtrain.testing.case import Case
from onnxtrain.testing.close import largest_error
from onnxtrain.testing.model import (
    Value,
    declared_types,
    draw,
    feeds_of,
    is_text,
    named,
    one_node_model,
    rounded,
)
from onnxtrain.types import DataType

_SCALE_TO_DOUBLE = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps


def truth(case: Case, inputs: Sequence[Value]) -> list[Any]:
    """The named outputs in float64, from inputs that are already rounded."""
    pairs = zip(case.inputs, inputs, strict=True)
    if case.reference is not None:
        return _attempt(case, [_widened(value) for value in inputs])
    # ONNX's reference demands the fixed types of its schema.
    fixed = [v if item and item.dtype is not None else _widened(v) for item, v in pairs]
    return _attempt(case, fixed)


def torch_in(case: Case, inputs: Sequence[Value]) -> list[Any]:
    """The named outputs as torch itself (or ONNX's reference) computes them in the inputs' types.

    Where it cannot (few operators take every type), it computes in float32 or int64 and rounds.
    """
    declared = declared_types(case, inputs)
    return [
        result if dtype is None else rounded(result, dtype)
        for result, dtype in zip(_attempt(case, inputs), declared, strict=True)
    ]


def _attempt(case: Case, inputs: Sequence[Value]) -> list[Any]:
    try:
        return reference(case, inputs)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return reference(case, [_plain(value) for value in inputs])


def own_errors(case: Case, dtype: DataType, inputs: Sequence[Value]) -> list[float]:
    """The largest error of torch itself in each named output.

    In float64 the truth has the same error as torch; there it is taken from float32 and scaled.
    """
    if dtype == DataType.DOUBLE:
        smaller = draw(case, DataType.FLOAT)
        return [error * _SCALE_TO_DOUBLE for error in own_errors(case, DataType.FLOAT, smaller)]
    pairs = zip(torch_in(case, inputs), truth(case, inputs), strict=True)
    return [largest_error(own, true) for own, true in pairs]


def reference(case: Case, inputs: Sequence[Value]) -> list[Any]:
    """The named outputs as the row's reference computes them (a tuple of them, or the only one)."""
    if case.reference is None:
        return _onnx_reference(case, inputs)
    attributes = {parameter(name): _as_stored(value) for name, value in case.attributes.items()}
    result = case.reference(*inputs, **attributes)
    outputs = list(result) if isinstance(result, tuple) or case.outputs > 1 else [result]
    return [outputs[index] for index in named(case)]


def _onnx_reference(case: Case, inputs: Sequence[Value]) -> list[Any]:
    evaluator = onnx.reference.ReferenceEvaluator(one_node_model(case, inputs))
    feeds = {name: _to_numpy(value) for name, value in feeds_of(case, inputs).items()}
    with np.errstate(all="ignore"):
        return [_from_numpy(result) for result in evaluator.run(None, feeds)]


def _as_stored(value: Any) -> Any:
    """An attribute as a model keeps it: floating point ones in float32."""
    if isinstance(value, (list, tuple)):
        return type(value)(_as_stored(item) for item in value)
    return float(np.float32(value)) if isinstance(value, float) else value


def _to_numpy(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_numpy(item) for item in value]
    return value if is_text(value) else array_of(value)


def _from_numpy(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_numpy(item) for item in value]
    return text_of(value) if value.dtype.kind in "OSU" else tensor_of(value)


def _each(function: Any) -> Any:
    """Apply a function of a tensor to tensors, to lists of tensors, and to None."""

    @functools.wraps(function)
    def apply(value: Any) -> Any:
        if isinstance(value, list):
            return [apply(item) for item in value]
        return value if value is None or is_text(value) else function(value)

    return apply


@_each
def _widened(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.float64) if value.dtype.is_floating_point else value.clone()


@_each
def _plain(value: torch.Tensor) -> torch.Tensor:
    if value.dtype in (torch.float16, torch.bfloat16):
        return value.to(torch.float32)
    if value.dtype.is_floating_point or value.dtype is torch.bool:
        return value.clone()
    return value.to(torch.int64)
