"""SimplifiedLayerNormalization, also called RMS normalization: x/√(mean(x²) + ε)·scale."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.normalized import read
from onnxtrain.transforms.fusion.pattern import Match, Pattern


def match(root: ir.Node) -> Match | None:
    """A normalization of data as it is."""
    found = read(root)
    if found is None or found.centred:
        return None

    def emit(op: Ops) -> ir.Value:
        return op.SimplifiedLayerNormalization(
            found.data,
            found.scale_or_ones(op),
            axis=-found.axes,
            epsilon=found.epsilon,
            stash_type=found.stash_type,
        )

    return Match(found.nodes, emit)


PATTERN = Pattern("RMSNormalization", frozenset({"Sqrt"}), match)
