"""Gradients of the recurrent layers that keep what their gradients need."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.known import inputs_of, output_of
from onnxtrain.gradients.rules import Grad, forwarded, gradient
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS


@gradient("LSTMTraining", domain=MS, all_outputs=True)
def lstm(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """All gradients in one operator, from the hidden states, cell states and gates of each step."""
    x, w, r, _, lengths, h0, c0, peepholes = inputs_of(node, 8)
    assert x is not None and x.dtype is not None
    kept = [output_of(node, i, s, x.dtype) for i, s in ((0, ""), (3, "_cells"), (4, "_gates"))]
    arrived = [*dys, None, None][:3]
    states = [x, w, r, lengths, h0, c0, *kept, *arrived, peepholes]
    d_x, d_w, d_r, d_b, d_h0, d_c0, d_p = op.LSTMGrad(
        *states, **forwarded(node), _outputs=7, _domain=MS
    )
    return [d_x, d_w, d_r, d_b, None, d_h0, d_c0, d_p][: len(node.inputs)]


@gradient("GRUTraining", domain=MS, all_outputs=True)
def gru(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """All gradients in one operator, from the hidden states and gates of each step."""
    x, w, r, b, lengths, h0 = inputs_of(node, 6)
    assert x is not None and x.dtype is not None
    kept = [output_of(node, i, s, x.dtype) for i, s in ((0, ""), (2, "_gates"))]
    incoming = [*dys, None][:2]
    d_x, d_w, d_r, d_b, d_h0 = op.GRUGrad(
        x, w, r, b, lengths, h0, *kept, *incoming, **forwarded(node), _outputs=5, _domain=MS
    )
    return [d_x, d_w, d_r, d_b, None, d_h0][: len(node.inputs)]
