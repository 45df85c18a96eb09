"""Biases that an exporter left out since they were zero.

Layers begin with biases of zero. Torch's exporter drops those of Gemm and Conv, which is right for
a model that only runs; training would go on without them. The call that a node was made of still
tells the parameter.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.constants import constant, made_for
from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.torch_export.traced import RULE, given, held_names, is_normalized, parameters
from onnxtrain.types import FLOATS, ONNX

_DROPPED = "RemoveOptionalBiasFrom"
"""What the names of rules begin with that drop a bias."""
_BIAS = 2
"""Which input it was."""
_LEAF = "bias"
"""What it is called in a batch normalization."""


def restore_biases(model: ir.Model) -> bool:
    """Give such nodes biases of zero again, in place; whether there were any."""
    graph = model.graph
    known = parameters(graph)
    stored = held_names(graph)
    made: dict[str, ir.Value] = {}
    for node in graph if known else ():
        if not node.metadata_props.get(RULE, "").startswith(_DROPPED) or _reads_bias(node):
            continue
        lost = [name for name in given(node, known) if name not in stored]
        if is_normalized(node):
            lost = [name for name in lost if name.rpartition(".")[2] == _LEAF]
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        zeros = _zeros(node, weight) if len(lost) == 1 else None
        if weight is None or zeros is None:
            continue
        if lost[0] not in made:
            made[lost[0]] = constant(graph, zeros, unique_name(graph, lost[0]))
            made_for(made[lost[0]], weight)
        node.resize_inputs(_BIAS + 1)
        node.replace_input_with(_BIAS, made[lost[0]])
    return bool(made)


def _reads_bias(node: ir.Node) -> bool:
    return len(node.inputs) > _BIAS and node.inputs[_BIAS] is not None


def _zeros(node: ir.Node, weight: ir.Value | None) -> np.ndarray | None:
    """A zero for each output of a layer, None if its weight does not tell how many there are.

    The weight may be that of another layer, transposed by a node.
    """
    if weight is None or weight.dtype is None or weight.shape is None or node.domain != ONNX:
        return None
    sizes = [size for size in weight.shape if isinstance(size, int)]
    if weight.dtype not in FLOATS or len(sizes) < 2 or len(sizes) < len(weight.shape):
        return None
    rows, columns = sizes[:2]
    if node.op_type == "Gemm":
        count = rows if node.attributes.get_int("transB", 0) else columns
    elif node.op_type == "Conv":
        count = rows
    elif node.op_type == "ConvTranspose":
        count = columns * node.attributes.get_int("group", 1)
    else:
        return None
    return np.zeros(count, weight.dtype.numpy())
