"""Outputs that are maps of scores by label, as the tensors of scores that a loss can take."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.builder import import_onnx
from onnxtrain.types import ML


def maps_as_tensors(model: ir.Model) -> ir.Model:
    """Let outputs of ZipMap be what it labels, under the same names, in place."""
    graph = model.graph
    for index, value in enumerate(graph.outputs):
        node = value.producer()
        if node is None or (node.domain, node.op_type) != (ML, "ZipMap") or value.uses():
            continue
        (scores,) = node.inputs
        import_onnx(graph)
        copied = ir.node("Identity", [scores], name=f"{node.name}_scores")
        graph.insert_after(node, copied)
        result = copied.outputs[0]
        result.name, result.type = value.name, scores.type if scores is not None else None
        result.shape = scores.shape if scores is not None else None
        graph.outputs[index] = result
        graph.remove(node, safe=True)
    return model
