"""Shapes that can never meet in a node, whatever a model is fed: such a file is wrong."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.graph.bindings import opset_of
from onnxtrain.graph.grammar import shown
from onnxtrain.types import ONNX

_BROADCAST = frozenset(
    {"Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater"}
    | {"GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow"}
    | {"Sub", "Sum", "Where", "Xor"}
)
"""Operators whose inputs broadcast to a common shape."""
_SINCE = 8
"""The opset from which all of them do so as NumPy does."""


def check_shapes(model: ir.Model) -> None:
    """Check that the inputs of elementwise nodes broadcast, as far as their sizes are known.

    Only nodes outside of bodies are looked at: an If may have a branch that is never taken.

    Raises:
        GraphError: naming the first node whose inputs cannot.
    """
    for node in model.graph:
        if node.domain != ONNX or node.op_type not in _BROADCAST:
            continue
        shapes = [v.shape for v in node.inputs if v is not None and v.shape is not None]
        if _broadcast(shapes) or opset_of(node, model.graph.opset_imports) < _SINCE:
            continue
        raise GraphError(
            f"{shown(node)}: {' and '.join(map(str, shapes))} do not broadcast\n"
            "  the model cannot run on any input: export it again (torch's older exporter, "
            "dynamo=False, writes\n  unfold of a negative dimension wrongly, for one)"
        )


def _broadcast(shapes: Sequence[ir.Shape]) -> bool:
    """Whether shapes have a common one; sizes that are not known fit any."""
    for axis in range(1, max(map(len, shapes), default=0) + 1):
        sizes = {shape[-axis] for shape in shapes if axis <= len(shape)}
        if len({size for size in sizes if isinstance(size, int) and size != 1}) > 1:
            return False
    return True
