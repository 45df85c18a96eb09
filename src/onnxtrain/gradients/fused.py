"""Gradients of fused, padding, quantizing and parallel operators outside ONNX."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.gradients.known import (
    dim_of,
    inputs_of,
    need_rank,
    operands,
    output_of,
    to_first,
)
from onnxtrain.gradients.rules import Grad, attribute, forwarded, gradient
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS, DataType

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


@gradient("FakeQuant", domain=MS)
def fake_quant(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy where nothing was clipped, straight through the rounding."""
    x = node.inputs[0]
    assert x is not None
    mask = output_of(node, 1, "_mask", DataType.BOOL, x.shape)
    return to_first(node, op.FakeQuantGrad(dy, mask, _domain=MS))


@gradient("FlattenAndUnpad", domain=MS)
def flatten_and_unpad(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The rows added to where they came from; a row may have been taken more than once."""
    x, indices = operands(node)
    inner = op.Slice(op.shape(x), op.ints([2]), op.ints([2**62]))
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


@gradient("DequantizeLinear")
def dequantize_linear(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y = (x - zero)·scale: (x - zero)·dy for the scale."""
    x, scale, zero = inputs_of(node, 3)
    assert x is not None and scale is not None
    ones = op.filled(1, shape_of=scale, like=scale)
    steps = op.DequantizeLinear(x, ones, zero, **forwarded(node))
    product = op.cast(op.Mul(dy, op.cast(steps, dy)), scale)
    return [None, _to_scale(op, node, product, x, scale), None][: len(node.inputs)]


def _to_scale(op: Ops, node: ir.Node, product: ir.Value, x: ir.Value, scale: ir.Value) -> ir.Value:
    """Summed over what each element of the scale stands for: all, an axis, or blocks of one."""
    rank, own = need_rank(x, "DequantizeLinear"), need_rank(scale, "DequantizeLinear")
    if own == 0 or (own == 1 and dim_of(scale, 0) == 1):
        return op.reshape_like(op.reduce_sum(product, None, keepdims=False), scale)
    axis = attribute(node, "axis", 1) % rank
    if own == 1:
        others = [i for i in range(rank) if i != axis]
        return op.reduce_sum(product, others, keepdims=False)
    size = op.Gather(op.shape(x), op.const(axis), axis=0)
    block = op.const(attribute(node, "block_size", 1))
    places = op.Div(op.Range(op.const(0), size, op.const(1)), block)
    return op.GatherGrad(op.shape(scale), places, product, axis=axis, _domain=MS)
