"""Values on which outputs of a graph depend in a way that may have a gradient."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.engine import carries_gradient
from onnxtrain.gradients.straight_through import behind
from onnxtrain.graph.edit import reads


def leads_to(graph: ir.Graph, outputs: Sequence[str] | None) -> set[ir.Value]:
    """Values from which floating point numbers flow to the outputs; None for all of them."""
    reached = {v for v in graph.outputs if outputs is None or v.name in outputs}
    for node in reversed(list(graph)):
        if any(v in reached for v in node.outputs if _may_carry(v)):
            reached |= {v for v in (*reads(node), *behind(node)) if _may_carry(v)}
    return reached


def _may_carry(value: ir.Value) -> bool:
    """Whether gradients may flow through a value; through one of unknown type they may."""
    return value.type is None or carries_gradient(value)
