"""Biases of recurrent layers of which a converter filled a half with zeros.

ONNX adds two biases in every gate, one for each matrix; layers of Keras have one, and its
converters write zeros for the other. If they were trained, the two would move twice as far.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.constants import constant
from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import ONNX

_CONVERTERS = frozenset({"keras2onnx", "tf2onnx"})
_BIAS = 3
_SUMMED = frozenset({"GRU", "LSTM", "RNN"})


def hold_padding(model: ir.Model, trained: Collection[str]) -> None:
    """Keep the zeros in such biases out of training, in place."""
    if model.producer_name not in _CONVERTERS:
        return
    graph = model.graph
    for node in list(all_nodes(graph)):
        bias = node.inputs[_BIAS] if _adds_both(node) else None
        if bias is None or bias.name not in trained or bias.const_value is None:
            continue
        numbers = bias.const_value.numpy()
        half = numbers.shape[1] // 2
        if numbers[:, half:].any():
            continue
        kept = np.ones_like(numbers)
        kept[:, half:] = 0
        mask = constant(graph, kept, unique_name(graph, f"{bias.name}_mask"))
        product = ir.node("Mul", [bias, mask], name=f"{node.name}_bias")
        held = product.outputs[0]
        held.name = unique_name(graph, f"{bias.name}_held")
        held.type, held.shape = bias.type, bias.shape
        graph.insert_before(graph[0], product)
        node.replace_input_with(_BIAS, held)


def _adds_both(node: ir.Node) -> bool:
    """Whether a layer has biases of which only the sum counts."""
    if node.domain != ONNX or node.op_type not in _SUMMED or len(node.inputs) <= _BIAS:
        return False
    return not node.attributes.get_int("linear_before_reset", 0)
