"""Gradients of convolutions."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.gradients.rules import Grad, forwarded, gradient
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS


@gradient("Conv")
def conv(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dX, dW and dB in one operator, which knows the forward attributes."""
    x, w = node.inputs[:2]
    grads: list[Grad] = [*op.ConvGrad(dy, x, w, **forwarded(node), _outputs=3, _domain=MS)]
    return grads[: len(node.inputs)]


@gradient("ConvTranspose")
def conv_transpose(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The same for the transposed convolution."""
    x, w = node.inputs[:2]
    grads: list[Grad] = [*op.ConvTransposeGrad(dy, x, w, **forwarded(node), _outputs=3, _domain=MS)]
    return grads[: len(node.inputs)]
