"""Which tensors are masks: numbers that rule scores out, or that become such."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxtrain.transforms.places import MOVERS, followers
from onnxtrain.types import FLOATS, ONNX, DataType

SWITCH = "mask: it is multiplied by a huge number"
"""What is a mask in one place is no weight in another."""
_HUGE = 1e8
_HUGE_FLOAT16 = 6e4
_SCANNED = 2**24
"""Larger tensors are not searched for the values of a mask."""


def why_mask(tensor: ir.TensorProtocol, node: ir.Node) -> str | None:
    """Why a tensor is a mask in this use, or None if it is none."""
    if _is_open_mask(tensor, node):
        return "mask: zeros that are added to the scores of a Softmax"
    if _is_mask(tensor):
        return "mask: it holds infinities or huge numbers"
    return SWITCH if _is_switch(tensor, node) else None


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


def _is_mask(tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor holds what is added to scores to rule them out."""
    if tensor.size > _SCANNED:
        return False
    data = tensor.numpy().astype(np.float64, copy=False)
    largest = max(data.max(), -data.min())
    limit = _HUGE_FLOAT16 if tensor.dtype == DataType.FLOAT16 else _HUGE
    return not np.isfinite(largest) or largest > limit


def _is_switch(tensor: ir.TensorProtocol, node: ir.Node) -> bool:
    """Whether ones and zeros become a mask, as in (1 - tensor)·(-1e9)."""
    if tensor.size > _SCANNED or not np.isin(tensor.numpy(), (0, 1)).all():
        return False
    behind = [one for one in followers(node, MOVERS | {"Mul", "Sub"}) if _is_mul(one)]
    factors = [v.const_value for one in behind for v in one.inputs if v is not None]
    return any(f is not None and f.dtype in FLOATS and f.size and _is_mask(f) for f in factors)


def _is_mul(node: ir.Node) -> bool:
    return node.domain == ONNX and node.op_type == "Mul"
