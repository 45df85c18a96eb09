"""Statistics that several BatchNormalizations of an artifact share."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.types import MS

_MEAN, _VARIANCE = 3, 4


def read_at_their_source(model: ir.Model) -> None:
    """Let BatchNormalizations of a training model update what they share, in place.

    An exporter stores statistics that begin equal once, and writes an Identity for each of the
    others. Artifacts of onnxruntime-training 1.19.2 keep that, and its step updates the one tensor
    in every layer.
    """
    for node in model.graph:
        if node.domain == MS and node.op_type == "BatchNormInternal":
            for index in (_MEAN, _VARIANCE):
                value = _source(node.inputs[index])
                if value is not None and value.is_graph_input():
                    node.replace_input_with(index, value)


def _source(value: ir.Value | None) -> ir.Value | None:
    """What a chain of Identities begins with."""
    while value is not None and (node := value.producer()) is not None:
        if node.domain or node.op_type != "Identity":
            return None
        value = node.inputs[0]
    return value
