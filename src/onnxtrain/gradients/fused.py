"""Gradients of fused, padding and parallel operators outside ONNX."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.gradients.known import operands, to_first
from onnxtrain.gradients.rules import Grad, attribute, forwarded, gradient
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS

_HORIZONTAL = 4
"""The group of processes that share the layers of a model, as collective operators number it."""


@gradient("Scale", domain=MS)
def scale(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy scaled the same way."""
    return to_first(node, op.Scale(dy, node.inputs[1], **forwarded(node), _domain=MS))


@gradient("ScaledSum", domain=MS)
def scaled_sum(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """s_i·dy for each."""
    count = len(node.inputs)
    scales = [attribute(node, f"scale_{i}", 1.0) for i in range(count)]
    if len(set(scales)) == 1:
        return [op.Mul(dy, op.scalar(scales[0], dy))] * count
    return list(op.BatchScale(dy, **forwarded(node), _outputs=count, _domain=MS))


@gradient("Trilu", domain=MS)
def trilu(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy with the same triangle kept."""
    grad = op.Trilu(dy, *node.inputs[1:], upper=attribute(node, "upper", 1), _domain=MS)
    return to_first(node, grad)


@gradient("FlattenAndUnpad", domain=MS)
def flatten_and_unpad(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The rows added to where they came from; a row may have been taken more than once."""
    x, indices = operands(node)
    inner = op.slice(op.shape(x), 2)
    rows = op.Shape(op.Reshape(x, op.Concat(op.ints([-1]), inner, axis=0)))
    return [op.reshape_like(op.GatherGrad(rows, indices, dy, axis=0, _domain=MS), x), None]


@gradient("PadAndUnflatten", domain=MS)
def pad_and_unflatten(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The rows taken out again."""
    grad, _ = op.FlattenAndUnpad(dy, node.inputs[1], _outputs=2, _domain=MS)
    return to_first(node, grad)


@gradient("MegatronF", domain=MS)
def megatron_f(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """A copy to every process of a layer; their gradients are added."""
    return [op.NcclAllReduce(dy, group_type=_HORIZONTAL, _domain=MS)]


@gradient("MegatronG", domain=MS)
def megatron_g(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The sum over every process of a layer; each has the same gradient."""
    return [dy]
