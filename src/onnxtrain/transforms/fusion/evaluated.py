"""Values that depend on nothing but constants, computed with ONNX's reference implementation."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from onnxtrain.graph.lean import RANDOM
from onnxtrain.types import ONNX

MOST_NODES = 256
MOST_ELEMENTS = 1 << 26


def evaluated(value: ir.Value) -> ir.TensorProtocol | None:
    """The constant that a value always is; None if it depends on an input, or is too large."""
    leaves: dict[ir.Value, ir.TensorProtocol] = {}
    nodes: dict[ir.Node, None] = {}
    if not _collect(value, nodes, leaves):
        return None
    graph = value.producer().graph  # type: ignore[union-attr]
    assert graph is not None
    imports = graph.opset_imports if isinstance(graph, ir.Graph) else {}
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [ir.to_proto(node) for node in nodes],
            "constant",
            [],
            [onnx.helper.make_empty_tensor_value_info(str(value.name))],
            [ir.to_proto(ir.Tensor(t.numpy(), name=v.name)) for v, t in leaves.items()],
        ),
        opset_imports=[onnx.helper.make_opsetid(ONNX, imports.get(ONNX, 1))],
    )
    (found,) = ReferenceEvaluator(model).run(None, {})
    return ir.Tensor(np.asarray(found), name=value.name)


def _collect(
    value: ir.Value, nodes: dict[ir.Node, None], leaves: dict[ir.Value, ir.TensorProtocol]
) -> bool:
    """Find the nodes behind a value, in order; False if they do not begin at constants only."""
    pending: list[tuple[ir.Value, bool]] = [(value, False)]
    while pending:
        current, done = pending.pop()
        node = current.producer()
        if current in leaves or (node is not None and node in nodes):
            continue
        if current.const_value is not None:
            leaves[current] = current.const_value
        elif node is None or not _is_pure(node) or not _small(current):
            return False
        elif done:
            nodes[node] = None
        else:
            pending.append((current, True))
            pending += [(part, False) for part in node.inputs if part is not None]
        if len(nodes) > MOST_NODES or len(pending) > 8 * MOST_NODES:
            return False
    return bool(nodes)


def _is_pure(node: ir.Node) -> bool:
    """Whether a node gives the same each time."""
    return node.domain == ONNX and node.op_type not in RANDOM


def _small(value: ir.Value) -> bool:
    shape = value.shape
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        return False
    return math.prod(shape.numpy()) <= MOST_ELEMENTS
