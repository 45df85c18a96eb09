"""A maximum pool and its gradient, as two operators that count places within planes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.pool import maybe_hollow
from onnxtrain.gradients.rules import attribute
from onnxtrain.graph.edit import detach, take_over
from onnxtrain.types import FLOATS, ONNX, OWN, DataType

_WINDOW = ("dilations", "kernel_shape", "pads", "strides")
_IMAGES = 4


def join_pools(model: ir.Model) -> int:
    """Join every pool of images with its gradient if torch has such a window; gives their number.

    Nobody else may ask for the places, which are other ones then.
    """
    graph = model.graph
    found = [(node, grads) for node in graph if (grads := _gradients(node))]
    for pool, grads in found:
        _join(graph, pool, grads)
        graph.remove(list(detach(pool, *grads)), safe=True)
    if found:
        graph.opset_imports.setdefault(OWN, 1)
    return len(found)


def _gradients(pool: ir.Node) -> list[ir.Node]:
    """What reads the places of a pool, if nothing but its gradients does."""
    if not is_plain_pool(pool) or len(pool.outputs) < 2 or pool.outputs[1].is_graph_output():
        return []
    uses = list(pool.outputs[1].uses())
    fits = [
        (use.node.domain, use.node.op_type, use.idx) == (ONNX, "MaxPoolGrad", 1)
        and use.node.attributes == pool.attributes
        for use in uses
    ]
    return [use.node for use in uses] if all(fits) else []


def is_plain_pool(node: ir.Node) -> bool:
    """Whether a node takes maxima of images as torch does, of which none is of padding alone."""
    if (node.domain, node.op_type) != (ONNX, "MaxPool") or maybe_hollow(node):
        return False
    x = node.inputs[0]
    if x is None or x.shape is None or len(x.shape) != _IMAGES or x.dtype not in FLOATS:
        return False
    kernel, pads = attribute(node, "kernel_shape", ()), attribute(node, "pads", ())
    begin, end = pads[: len(kernel)], pads[len(kernel) :]
    usual = attribute(node, "auto_pad", "NOTSET") == "NOTSET"
    counted = any(attribute(node, name, 0) for name in ("ceil_mode", "storage_order"))
    even = begin == end and all(2 * p <= k for p, k in zip(begin, kernel, strict=False))
    return usual and even and not counted


def _join(graph: ir.Graph, pool: ir.Node, grads: Sequence[ir.Node]) -> None:
    window = [a for name, a in pool.attributes.items() if name in _WINDOW]
    name = f"{pool.name}_InPlanes"
    forward = ir.Node(OWN, "MaxPoolInPlanes", [pool.inputs[0]], window, num_outputs=2, name=name)
    graph.insert_before(pool, forward)
    for old, new in zip(pool.outputs, forward.outputs, strict=True):
        take_over(old, new)
    forward.outputs[1].type = ir.TensorType(DataType.INT32)
    for grad in grads:
        inputs = [grad.inputs[0], forward.outputs[1], *grad.inputs[2:]]
        name = f"{grad.name}_InPlanes"
        backward = ir.Node(OWN, "MaxPoolInPlanesGrad", inputs, window, name=name)
        graph.insert_before(grad, backward)
        take_over(grad.outputs[0], backward.outputs[0])
