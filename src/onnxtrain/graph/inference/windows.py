"""Convolutions and pools whose window is larger than the padded data: they have no results.

ONNX divides by the stride and rounds down, but its inference rounds towards zero, and finds one
result where a stride above 1 leaves less than one window.
"""

from __future__ import annotations

import itertools

import onnx
import onnx_ir as ir

from onnxtrain.graph.inference.transposed import kernel_sizes
from onnxtrain.types import ONNX

_SLIDING = frozenset({"AveragePool", "Conv", "LpPool", "MaxPool"})


def is_too_wide(node: ir.Node) -> bool:
    """Whether ONNX's inference counts a window that a node does not have."""
    return bool(_missing(node))


def without_windows(node: ir.Node, proto: onnx.NodeProto) -> None:
    """Let inference find no result along such axes: all but one element of a window of step 1."""
    missing = _missing(node)
    if not missing:
        return
    strides, pads = _steps(node)
    for axis, room in missing.items():
        strides[axis] = 1
        pads[len(strides) + axis] -= room + 1
    made = {"strides": strides, "pads": pads}
    kept = [a for a in proto.attribute if a.name not in (*made, "auto_pad")]
    del proto.attribute[:]
    proto.attribute.extend([*kept, *itertools.starmap(onnx.helper.make_attribute, made.items())])


def _missing(node: ir.Node) -> dict[int, int]:
    """Axes without a window, and how many elements there are beyond one (fewer than none)."""
    if node.domain != ONNX or node.op_type not in _SLIDING or not node.inputs:
        return {}
    kernel, x = kernel_sizes(node), node.inputs[0]
    if kernel is None or x is None or x.shape is None or len(x.shape) != len(kernel) + 2:
        return {}
    if node.attributes.get_string("auto_pad", "").startswith("SAME"):
        return {}
    rank = len(kernel)
    strides, pads = _steps(node)
    dilations = node.attributes.get_ints("dilations", [1] * rank)
    up = bool(node.attributes.get_int("ceil_mode", 0))
    found = {}
    for axis, size in enumerate(x.shape[2:]):
        if not isinstance(size, int):
            continue
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        room = size + pads[axis] + pads[rank + axis] - reach
        steps = -(-room // strides[axis]) if up else room // strides[axis]
        if steps == -1:
            found[axis] = room
    return found


def _steps(node: ir.Node) -> tuple[list[int], list[int]]:
    """Strides and pads of a node."""
    rank = len(kernel_sizes(node) or ())
    strides = node.attributes.get_ints("strides", [1] * rank)
    return [*strides], [*node.attributes.get_ints("pads", [0] * 2 * rank)]
