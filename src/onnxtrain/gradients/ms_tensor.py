"""Gradients of further forward operators outside ONNX."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.errors import NoGradientError
from onnxtrain.gradients.gather import by_frequency, except_row
from onnxtrain.gradients.known import exact_in_float, inputs_of, ints_of, operands, to_first
from onnxtrain.gradients.pad import padded_by
from onnxtrain.gradients.rules import Grad, forwarded, gradient, no_gradient
from onnxtrain.gradients.vector_jacobian import pulled_back
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS, DataType

no_gradient("DynamicTimeWarping", "MurmurHash3", domain=MS)


@gradient("CDist", "CropAndResize", "GridSample", "Inverse", "UnfoldTensor", domain=MS)
@gradient("ComplexMul", "ComplexMulConj", "Irfft", "Rfft", "ScaledSiLU", domain=MS)
@gradient("BranchwiseRMSNorm", "GatedRMSNorm", "MaxpoolWithMask", "MoE", domain=MS)
@gradient("WordConvEmbedding", domain=MS)
def recorded(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Run again and differentiated by torch."""
    return pulled_back(op, node, [dy])


@gradient("LinearAttentionGate", domain=MS, all_outputs=True)
def linear_attention_gate(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """Run again and differentiated by torch, from both results."""
    return pulled_back(op, node, dys)


@gradient("SampleOp", domain=MS)
def sample_op(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy."""
    return [dy]


@gradient("GatedAdd", domain=MS)
def gated_add(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy, gate·dy, and y·dy summed back."""
    x, y, gate = operands(node)
    parts = dy, op.Mul(dy, gate), op.Mul(dy, y)
    return [op.unbroadcast(part, to=value) for part, value in zip(parts, (x, y, gate), strict=True)]


@gradient("ExpandDims", domain=MS)
def expand_dims(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy in the shape of x."""
    x, _ = operands(node)
    return [op.reshape_like(dy, x), None]


@gradient("GatherND", domain=MS)
def gather_nd(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy added where each slice came from."""
    data, indices = operands(node)
    whole = op.cast(indices, DataType.INT64)
    return [op.GatherNDGrad(op.shape(data), whole, dy, batch_dims=0, _domain=MS), None]


@gradient("Pad", domain=MS)
def pad(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """That of ONNX's Pad, whose widths cannot be a row."""
    pads = operands(node)[1]
    if op.opset < 11:  # where these are an attribute
        return pulled_back(op, node, [dy])
    known = ints_of(pads)
    flat = op.Reshape(pads, op.ints([-1])) if known is None else op.ints(known)
    return padded_by(op, node, dy, flat)


@gradient("Range", domain=MS)
def range_(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y = start + i·delta: Σ dy for the start, Σ i·dy for delta."""
    start, _, delta = inputs_of(node, 3)
    assert start is not None
    length = op.Gather(op.Shape(dy), op.const(0), axis=0)
    steps = op.cast(op.Range(op.const(0), length, op.const(1)), dy)
    sums = [op.reduce_sum(x, None, keepdims=False) for x in (dy, op.Mul(dy, steps))]
    d_delta = None if delta is None else op.reshape_like(sums[1], delta)
    return [op.reshape_like(sums[0], start), None, d_delta][: len(node.inputs)]


@gradient("TorchEmbedding", domain=MS)
def torch_embedding(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy added to the row of each index, except to that of ``padding_idx``."""
    weight, indices, padding, scaled = inputs_of(node, 4)
    assert weight is not None and indices is not None
    if scaled is not None and ints_of(scaled) is None:
        raise NoGradientError(
            f"no gradient of TorchEmbedding whose scale_grad_by_freq varies, node '{node.name}'"
        )
    if padding is not None:
        dy = except_row(op, dy, indices, padding)
    if ints_of(scaled) not in (None, [0]):
        dy = by_frequency(op, dy, indices, weight)
    return to_first(node, op.GatherGrad(op.shape(weight), indices, dy, axis=0, _domain=MS))


@gradient("ConvTransposeWithDynamicPads", domain=MS)
def conv_transpose(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """That of ConvTranspose, if the pads are constant."""
    x, w, pads, _ = inputs_of(node, 4)
    known = ints_of(pads)
    if pads is not None and known is None:
        raise NoGradientError(
            f"no gradient of ConvTransposeWithDynamicPads whose pads vary, node '{node.name}'"
        )
    window = {**forwarded(node), **({"pads": known} if known else {})}
    dx, dw, db = op.ConvTransposeGrad(dy, x, w, **window, _outputs=3, _domain=MS)
    return [dx, dw, None, db][: len(node.inputs)]


@gradient("NGramRepeatBlock", domain=MS)
def ngram_repeat_block(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy where the score was kept."""
    _, scores = operands(node)
    kept = op.equal(node.outputs[0], scores)
    return [None, op.where(kept, dy, op.scalar(0, dy))]


@gradient("Unique", domain=MS)
def unique(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy to the first place of each element."""
    (x,) = operands(node)
    _, first, *_ = op.Unique(exact_in_float(op, x), sorted=0, _outputs=4)
    return [op.GatherGrad(op.shape(x), first, dy, axis=0, _domain=MS)]
