"""What the bodies of Scans are given, where they do not declare it."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.bindings import opset_of
from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import ONNX

_SINCE = 9
"""Before, a Scan had a batch and lengths."""


def shape_slices(model: ir.Model) -> bool:
    """Write shapes into inputs of bodies that have none, in place; whether there were any.

    A slice is shaped like what is scanned, without its axis. A state keeps its rank.
    """
    imports = model.graph.opset_imports
    scans = [
        node
        for node in all_nodes(model.graph)
        if node.domain == ONNX and node.op_type == "Scan" and opset_of(node, imports) >= _SINCE
    ]
    return any([_shape(node) for node in scans])


def _shape(node: ir.Node) -> bool:
    inputs = list(node.attributes["body"].as_graph().inputs)
    scanned = node.attributes.get_int("num_scan_inputs", len(inputs))
    axes = node.attributes.get_ints("scan_input_axes", None) or [0] * scanned
    places = [*[None] * (len(inputs) - scanned), *axes]
    changed = False
    for inside, whole, axis in zip(inputs, node.inputs, places, strict=False):
        if inside.shape is None and whole is not None and whole.shape is not None:
            inside.shape = _given(whole.shape, axis)
            inside.type = inside.type or whole.type
            changed |= inside.shape is not None
    return changed


def _given(whole: ir.Shape, axis: int | None) -> ir.Shape | None:
    """The shape of a slice, or of a state without an axis; None if there is no such axis."""
    if axis is None:
        return ir.Shape([None] * len(whole))
    sizes = list(whole)
    if not -len(sizes) <= axis < len(sizes):
        return None
    del sizes[axis]
    return ir.Shape(sizes)
