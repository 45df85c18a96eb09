"""LayerNormalization: (x - mean)/√(variance + ε)·scale + bias."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.normalized import read
from onnxtrain.transforms.fusion.pattern import Match, Pattern


def match(root: ir.Node) -> Match | None:
    """A normalization of data less its mean."""
    found = read(root)
    if found is None or not found.centred:
        return None

    def emit(op: Ops) -> ir.Value:
        return op.LayerNormalization(
            found.data,
            found.scale_or_ones(op),
            found.shift(op),
            axis=-found.axes,
            epsilon=found.epsilon,
            stash_type=found.stash_type,
        )

    return Match(found.nodes, emit)


PATTERN = Pattern("LayerNormalization", frozenset({"Sqrt"}), match)
