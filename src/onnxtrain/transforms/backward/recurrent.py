"""A recurrent layer that is run once: by the form that keeps what its gradient reads."""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from onnxtrain.gradients.rnn import PLAIN, is_plain
from onnxtrain.graph.edit import detach, take_over
from onnxtrain.types import MS, ONNX

_KEPT = {"LSTMTraining": "LSTM", "GRUTraining": "GRU"}
"""Forms that also give states and gates of each step, behind what the layer itself gives."""


def join_recurrent(model: ir.Model) -> int:
    """Let one node be a layer and what its gradient ran again; gives their number."""
    graph = model.graph
    layers: dict[Hashable, ir.Node] = {}
    replaced: list[ir.Node] = []
    for node in list(graph):
        if node.domain == ONNX and node.op_type in PLAIN and is_plain(node):
            layers[_key(node, node.op_type)] = node
        elif node.domain == MS and node.op_type in _KEPT:
            layer = layers.pop(_key(node, _KEPT[node.op_type]), None)
            if layer is not None:
                _join(graph, layer, node)
                replaced += detach(layer)
    if replaced:
        graph.remove(replaced, safe=True)
    return len(replaced)


def _key(node: ir.Node, layer: str) -> Hashable:
    """What a layer computes: its kind, what it reads, and how."""
    inputs = [*node.inputs]
    while inputs and inputs[-1] is None:
        inputs.pop()
    direction = node.attributes.get_string("direction", "forward")
    return layer, tuple(inputs), direction, node.attributes.get_int("linear_before_reset", 0)


def _join(graph: ir.Graph, layer: ir.Node, kept: ir.Node) -> None:
    """Put the form that keeps more in the place of the layer."""
    graph.remove(kept)
    graph.insert_before(layer, kept)
    for old, new in zip(layer.outputs, kept.outputs, strict=False):
        if old.name and (old.uses() or old.is_graph_output()):
            take_over(old, new)
