"""Squeeze and Slice, of which ONNX's inference does not know all.

Before opset 11 it takes the axes of a Squeeze to be in ascending order, and keeps others. In opset
10 a Slice leaves a size that has a name as it is. The largest numbers as the end of a Slice mean
the end of the axis in the direction of the step, in onnxruntime and here; its inference knows that
of forward steps only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onnxtrain.types import ONNX

_KNOWN_SINCE, _SLICED_BY_INPUTS = 11, 10
_TO_THE_END = (2**31 - 1, 2**63 - 1)
_ENDS, _STEPS = 2, 4
"""Where a Slice has these inputs."""


def is_outdated(node: ir.Node, imports: dict[str, int]) -> bool:
    """Whether ONNX's inference gets the sizes of a node wrong, and in opset 11 does not."""
    version = imports.get(ONNX, 1)
    if node.domain != ONNX or version >= _KNOWN_SINCE:
        return False
    if node.op_type == "Squeeze":
        axes = list(node.attributes.get_ints("axes", ()))
        return axes != sorted(axes)
    return node.op_type == "Slice" and version >= _SLICED_BY_INPUTS and _has_names(node.inputs[:1])


def _has_names(values: Sequence[ir.Value | None]) -> bool:
    shapes = [value.shape for value in values if value is not None and value.shape is not None]
    return not all(isinstance(size, int) for shape in shapes for size in shape)


def renewed(node: ir.Node, imports: dict[str, int]) -> dict[str, int]:
    """The opsets to infer a node with."""
    return {**imports, ONNX: _KNOWN_SINCE} if is_outdated(node, imports) else imports


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
