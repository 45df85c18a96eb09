"""Rows for operators that move, cut, join, index, cast and create tensors."""

from __future__ import annotations

from onnxtrain.testing.case import Case, rows
from onnxtrain.testing.cases import (
    tensor_cast,
    tensor_concat,
    tensor_create,
    tensor_gather,
    tensor_pad,
    tensor_random,
    tensor_resize,
    tensor_scatter,
    tensor_select,
    tensor_shape,
    tensor_slice,
)

CASES: list[Case] = rows(
    module.CASES
    for module in (
        tensor_cast,
        tensor_concat,
        tensor_create,
        tensor_gather,
        tensor_pad,
        tensor_random,
        tensor_resize,
        tensor_scatter,
        tensor_select,
        tensor_shape,
        tensor_slice,
    )
)
