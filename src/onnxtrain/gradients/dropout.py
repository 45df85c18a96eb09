"""Gradients of dropout, alone and fused with what stands around it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.known import constant_of, inputs_of, output_of, to_first
from onnxtrain.gradients.rules import Grad, attribute, forwarded, gradient
from onnxtrain.gradients.softmax import bias_rows
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS, DataType


@gradient("Dropout", since=7, until=11, all_outputs=True)
def inference_dropout(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """These versions only exist for inference, where dropout does nothing; the mask is constant."""
    return [dys[0]]


@gradient("Dropout", since=12)
def dropout(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """mask·dy/(1 - ratio) while training, else dy."""
    _, ratio, training = inputs_of(node, 3)
    if _is_off(training):
        return to_first(node, dy)
    mask = output_of(node, 1, "_mask", DataType.BOOL, node.outputs[0].shape)
    dx = op.DropoutGrad(dy, mask, ratio, training, **forwarded(node), _domain=MS)
    return to_first(node, dx)


def _is_off(training: Grad) -> bool:
    """Whether dropout certainly does nothing: the training flag is absent or false."""
    known = constant_of(training)
    return training is None or (known is not None and not known.any())


@gradient("BitmaskDropout", domain=MS)
def bitmask_dropout(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Dropout whose mask is packed into the bits of whole numbers."""
    _, ratio, training = inputs_of(node, 3)
    if _is_off(training):
        return to_first(node, dy)
    mask = output_of(node, 1, "_mask", DataType.UINT32)
    dx = op.BitmaskDropoutGrad(dy, mask, ratio, training, **forwarded(node), _domain=MS)
    return to_first(node, dx)


@gradient("BiasDropout", "BitmaskBiasDropout", domain=MS)
def bias_dropout(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y = dropout(data + bias) + residual."""
    _, bias, residual, ratio, training = inputs_of(node, 5)
    assert bias is not None
    dx = dy
    if not _is_off(training):
        packed = node.op_type == "BitmaskBiasDropout"
        mask = output_of(node, 1, "_mask", DataType.UINT32 if packed else DataType.BOOL)
        undo = op.BitmaskDropoutGrad if packed else op.DropoutGrad
        dx = undo(dy, mask, ratio, training, **forwarded(node), _domain=MS)
    passed = None if residual is None else op.unbroadcast(dy, to=residual)
    return [dx, op.unbroadcast(dx, to=bias), passed, None, None][: len(node.inputs)]


@gradient("BiasSoftmaxDropout", domain=MS, all_outputs=True)
def bias_softmax_dropout(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """dropout(softmax(data + bias)); the mask and the softmax are outputs of the node."""
    data, _, ratio = inputs_of(node, 3)
    assert data is not None
    mask = output_of(node, 1, "_mask", DataType.BOOL, data.shape)
    softmax = output_of(node, 2, "_softmax", data.dtype or DataType.FLOAT, data.shape)
    axis = attribute(node, "axis", 1)
    dy, _, d_softmax = [*dys, None, None][:3]
    terms: list[Grad] = [None, None]
    if dy is not None:
        terms[0] = op.SoftmaxDropoutGrad(dy, mask, softmax, ratio, axis=axis, _domain=MS)
    if d_softmax is not None:
        terms[1] = op.SoftmaxGrad(d_softmax, softmax, axis=axis, _domain=MS)
    dx = op.add(*terms)
    assert dx is not None
    return [dx, bias_rows(op, node, dx), None][: len(node.inputs)]
