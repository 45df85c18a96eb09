"""Pools whose sizes are rounded up: before opset 22 ONNX's inference counts a window too many.

A window that would begin beyond the data and the padding before it is left out, which is what every
runtime does and what inference knows since opset 22. Nothing else changed in that version.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.types import ONNX

_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_COUNTED_SINCE = 22


def rounds_up(node: ir.Node) -> bool:
    """Whether a node is such a pool."""
    return (
        node.domain == ONNX
        and node.op_type in _POOLS
        and bool(node.attributes.get_int("ceil_mode", 0))
    )


def is_miscounted(node: ir.Node, imports: dict[str, int]) -> bool:
    """Whether ONNX's inference of the whole model gets the size of a node wrong."""
    return imports.get(ONNX, 1) < _COUNTED_SINCE and rounds_up(node)


def counting(node: ir.Node, imports: dict[str, int]) -> dict[str, int]:
    """The opsets to infer a node with."""
    if not rounds_up(node):
        return imports
    return {**imports, ONNX: max(_COUNTED_SINCE, imports.get(ONNX, 1))}
