"""Which tensors are masks: numbers that rule scores out, or that become such."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxtrain.transforms.weights.places import MOVERS, followers
from onnxtrain.types import FLOATS, ONNX, DataType

SWITCH = "mask: it is multiplied by a huge number"
"""What is a mask in one place is no weight in another."""
_HUGE = 1e8
_HUGE_FLOAT16 = 6e4
_FORBIDDING = 100
"""Numbers that rule a score out if nothing but zeros stands beside them."""
_FACTOR = 1e4
"""What ones and zeros are multiplied by to become such numbers."""
_SCANNED = 2**24
"""Larger tensors are not searched for the values of a mask."""


def why_mask(tensor: ir.TensorProtocol, node: ir.Node) -> str | None:
    """Why a tensor is a mask in this use, or None if it is none."""
    if _is_open_mask(tensor, node):
        return "mask: zeros that are added to the scores of a Softmax"
    if tensor.size > _SCANNED:
        return None
    data = tensor.numpy().astype(np.float64, copy=False)
    if _is_mask(data, tensor.dtype):
        return "mask: it holds infinities or huge numbers"
    if node.op_type == "Add" and _rules_out(data):
        return "mask: zeros, and numbers that rule scores out"
    if not np.isin(data, (0, 1)).all():
        return None
    if _is_switch(node):
        return SWITCH
    both = bool(data.any()) and not data.all()
    return "mask: it holds ones and zeros" if both and node.op_type in ("Mul", "Sub") else None


def is_zero(tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor has nothing but zeros."""
    return is_filled(tensor, 0)


def is_filled(tensor: ir.TensorProtocol, number: int) -> bool:
    """Whether a tensor has one number throughout."""
    return tensor.size <= _SCANNED and not np.any(tensor.numpy() != number)


def _is_open_mask(tensor: ir.TensorProtocol, node: ir.Node) -> bool:
    """Whether a tensor is a mask that rules nothing out, as exporters write for full batches."""
    if node.op_type != "Add" or len(tensor.shape) < 2:
        return False
    to_softmax = any(use.node.op_type == "Softmax" for use in node.outputs[0].uses())
    return to_softmax and is_zero(tensor)


def _is_mask(data: np.ndarray, dtype: DataType | None) -> bool:
    """Whether numbers hold what is added to scores to rule them out."""
    largest = max(data.max(), -data.min())
    limit = _HUGE_FLOAT16 if dtype == DataType.FLOAT16 else _HUGE
    return not np.isfinite(largest) or largest > limit


def _rules_out(data: np.ndarray) -> bool:
    """Whether some numbers leave a score as it is, and all others are far below zero."""
    kept = data == 0
    return bool(kept.any()) and not kept.all() and bool((kept | (data <= -_FORBIDDING)).all())


def _is_switch(node: ir.Node) -> bool:
    """Whether ones and zeros become a mask behind a node, as in (1 - tensor)·(-1e9)."""
    behind = [one for one in followers(node, MOVERS | {"Mul", "Sub"}) if _is_mul(one)]
    factors = [v.const_value for one in behind for v in one.inputs if v is not None]
    return any(_is_large(f) for f in factors if f is not None and f.dtype in FLOATS)


def _is_large(factor: ir.TensorProtocol) -> bool:
    """Whether the factor makes large numbers of ones: a single one, or one that itself is huge."""
    if not factor.size or factor.size > _SCANNED:
        return False
    data = factor.numpy().astype(np.float64, copy=False)
    single = factor.size == 1 and bool(np.abs(data).max() >= _FACTOR)
    return single or _is_mask(data, factor.dtype)


def _is_mul(node: ir.Node) -> bool:
    return node.domain == ONNX and node.op_type == "Mul"
