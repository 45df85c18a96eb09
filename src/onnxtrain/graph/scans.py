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
    states = len(inputs) - scanned
    changed = False
    for index, (inside, whole) in enumerate(zip(inputs, node.inputs, strict=False)):
        if inside.shape is not None or whole is None or whole.shape is None:
            continue
        if index < states:
            inside.shape = ir.Shape([None] * len(whole.shape))
        else:
            sizes = list(whole.shape)
            del sizes[axes[index - states]]
            inside.shape = ir.Shape(sizes)
        inside.type = inside.type or whole.type
        changed = True
    return changed
