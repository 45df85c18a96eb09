"""Defaults that ONNX's inference takes for something else, written out so that it sees them."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import ONNX

DEFAULTS = {"STFT": ("onesided", 1)}
"""The attribute that an operator may leave out, and what it is then."""


def spell_out(model: ir.Model) -> None:
    """Give nodes the defaults that they rely on, in place."""
    for node in all_nodes(model.graph):
        if node.domain == ONNX and node.op_type in DEFAULTS:
            name, value = DEFAULTS[node.op_type]
            if name not in node.attributes:
                node.attributes.add(ir.AttrInt64(name, value))
