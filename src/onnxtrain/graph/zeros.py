"""Reshapes to sizes of the run, among which a 0 means 0.

Since opset 14 an attribute says so. Before, a 0 copies a dimension of the input, so the node gets a
mark that is saved with the model; runtimes that do not know it differ for empty tensors only.
"""

from __future__ import annotations

import onnx_ir as ir

_KEY = "onnxtrain.allowzero"
SINCE = 14
"""The opset in which Reshape got the attribute."""


def mark_exact(node: ir.Node) -> None:
    """Say that a 0 among the sizes of a Reshape means 0."""
    node.metadata_props[_KEY] = "1"


def is_marked_exact(node: ir.Node) -> bool:
    """Whether a 0 among the sizes means 0, though the opset has no attribute for it."""
    return _KEY in node.metadata_props and node.op_type == "Reshape"
