"""Axes and ends in an order that ONNX's inference does not know.

Before opset 11 it takes the axes of a Squeeze to be in ascending order, and keeps others. The
largest numbers as the end of a Slice mean the end of the axis in the direction of the step, in
onnxruntime and here; its inference knows that of forward steps only.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from onnxtrain.types import ONNX

_ANY_ORDER_SINCE = 11
_TO_THE_END = (2**31 - 1, 2**63 - 1)
_ENDS, _STEPS = 2, 4
"""Where a Slice has these inputs."""


def is_unsorted(node: ir.Node, imports: dict[str, int]) -> bool:
    """Whether ONNX's inference leaves axes of a Squeeze where they are."""
    axes = node.attributes.get_ints("axes", ()) if node.op_type == "Squeeze" else ()
    old = imports.get(ONNX, 1) < _ANY_ORDER_SINCE
    return node.domain == ONNX and old and list(axes) != sorted(axes)


def sorting(node: ir.Node, imports: dict[str, int]) -> dict[str, int]:
    """The opsets to infer a node with."""
    return {**imports, ONNX: _ANY_ORDER_SINCE} if is_unsorted(node, imports) else imports


def is_backwards(node: ir.Node) -> bool:
    """Whether a Slice goes backwards to the end of an axis."""
    return _ends(node) is not None


def _ends(node: ir.Node) -> np.ndarray | None:
    """The ends of such a Slice in the form that inference knows; None if it is no such one."""
    if node.domain != ONNX or node.op_type != "Slice" or len(node.inputs) <= _STEPS:
        return None
    given = [node.inputs[place] for place in (_ENDS, _STEPS)]
    ends, steps = (None if v is None or v.const_value is None else v.const_value for v in given)
    if ends is None or steps is None or ends.shape != steps.shape:
        return None
    numbers = ends.numpy()
    last = (steps.numpy() < 0) & np.isin(numbers, _TO_THE_END)
    return np.where(last, np.iinfo(numbers.dtype).min, numbers) if last.any() else None


def turn(
    node: ir.Node,
    proto: onnx.NodeProto,
    types: dict[str, onnx.TypeProto],
    data: dict[str, onnx.TensorProto],
) -> None:
    """Give the node that is inferred ends of its own, where ONNX's inference needs others."""
    ends = _ends(node)
    if ends is not None:
        name = f"{proto.input[_ENDS]}/backwards"
        types[name] = types[proto.input[_ENDS]]
        data[name] = onnx.numpy_helper.from_array(ends, name)
        proto.input[_ENDS] = name
