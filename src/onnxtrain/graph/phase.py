"""Which part of a training step a node belongs to."""

from __future__ import annotations

import enum
from collections.abc import Iterator

import onnx_ir as ir

_KEY = "onnxtrain.phase"
BACKWARD_DOC = "Backward pass"
"""The description that the reference's tools look for on gradient nodes."""


class Phase(enum.Enum):
    """Forward, backward or update."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


def mark(node: ir.Node, phase: Phase) -> None:
    """Say which phase a node belongs to; the mark is saved with the model."""
    node.metadata_props[_KEY] = phase.value
    if phase is Phase.BACKWARD:
        node.doc_string = BACKWARD_DOC


def phase_of(node: ir.Node) -> Phase:
    """The phase of a node; forward unless it says otherwise."""
    if _KEY in node.metadata_props:
        return Phase(node.metadata_props[_KEY])
    return Phase.BACKWARD if node.doc_string == BACKWARD_DOC else Phase.FORWARD


def nodes_in(graph: ir.Graph, phase: Phase) -> Iterator[ir.Node]:
    """The nodes of one phase, in graph order."""
    return (node for node in graph if phase_of(node) is phase)
