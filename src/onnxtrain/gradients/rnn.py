"""Gradients of recurrent layers.

Plain ones have gradient operators, which need the states and gates of each step. With other
activation functions, sequence lengths, a bound or the batch first, the layer is run again and
differentiated by torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.known import inputs_of, output_of
from onnxtrain.gradients.rules import Grad, attribute, forwarded, gradient
from onnxtrain.gradients.vector_jacobian import pulled_back
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS


@gradient("LSTMTraining", domain=MS, all_outputs=True)
def lstm(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """All gradients in one operator, from the hidden states, cell states and gates of each step."""
    if any(dys[3:]):
        return pulled_back(op, node, dys)
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
    if any(dys[2:]):
        return pulled_back(op, node, dys)
    x, w, r, b, lengths, h0 = inputs_of(node, 6)
    assert x is not None and x.dtype is not None
    kept = [output_of(node, i, s, x.dtype) for i, s in ((0, ""), (2, "_gates"))]
    incoming = [*dys, None][:2]
    d_x, d_w, d_r, d_b, d_h0 = op.GRUGrad(
        x, w, r, b, lengths, h0, *kept, *incoming, **forwarded(node), _outputs=5, _domain=MS
    )
    return [d_x, d_w, d_r, d_b, None, d_h0][: len(node.inputs)]


@gradient("LSTM", all_outputs=True)
def plain_lstm(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """Run again as LSTMTraining, which keeps what the gradient needs."""
    if not is_plain(node):
        return pulled_back(op, node, dys)
    x, w, r, _, lengths, h0, c0, peepholes = inputs_of(node, 8)
    options = forwarded(node, *_ALONE)
    every, _, _, cells, gates = op.LSTMTraining(*node.inputs, **options, _outputs=5, _domain=MS)
    arrived = [*dys, None, None][:3]
    states = [x, w, r, lengths, h0, c0, every, cells, gates, *arrived, peepholes]
    d_x, d_w, d_r, d_b, d_h0, d_c0, d_p = op.LSTMGrad(*states, **options, _outputs=7, _domain=MS)
    return [d_x, d_w, d_r, d_b, None, d_h0, d_c0, d_p][: len(node.inputs)]


@gradient("GRU", all_outputs=True)
def plain_gru(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """Run again as GRUTraining, which keeps what the gradient needs."""
    if not is_plain(node):
        return pulled_back(op, node, dys)
    x, w, r, b, lengths, h0 = inputs_of(node, 6)
    options = forwarded(node, *_ALONE)
    every, _, gates = op.GRUTraining(*node.inputs, **options, _outputs=3, _domain=MS)
    states = [x, w, r, b, lengths, h0, every, gates, *[*dys, None][:2]]
    d_x, d_w, d_r, d_b, d_h0 = op.GRUGrad(*states, **options, _outputs=5, _domain=MS)
    return [d_x, d_w, d_r, d_b, None, d_h0][: len(node.inputs)]


@gradient("RNN", all_outputs=True)
def rnn(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """A layer of tanh is a GRU whose update gate is 0 and whose reset gate is 1."""
    if not is_plain(node):
        return pulled_back(op, node, dys)
    x, w, r, _, lengths, h0 = inputs_of(node, 6)
    assert x is not None and w is not None and r is not None and x.dtype is not None
    options = {**forwarded(node, *_ALONE), "linear_before_reset": 1}
    every = output_of(node, 0, "", x.dtype)
    closed, opened = (op.filled(n, shape_of=every, like=x) for n in (0, 1))
    gates = op.Concat(closed, opened, every, axis=3)
    wide = [op.Concat(*[op.filled(0, shape_of=m, like=m)] * 2, m, axis=1) for m in (w, r)]
    states = [x, *wide, None, lengths, h0, every, gates, *[*dys, None][:2]]
    d_x, d_w, d_r, d_b, d_h0 = op.GRUGrad(*states, **options, _outputs=5, _domain=MS)
    last = [op.SplitTraining(d, op.ints([]), axis=1, _outputs=3, _domain=MS)[2] for d in (d_w, d_r)]
    biases = op.SplitTraining(d_b, op.ints([]), axis=1, _outputs=6, _domain=MS)
    both = op.Concat(biases[2], biases[5], axis=1)
    return [d_x, *last, both, None, d_h0][: len(node.inputs)]


@gradient("GRUGrad", "LSTMGrad", domain=MS, all_outputs=True)
def layer_grad(op: Ops, node: ir.Node, gs: Sequence[Grad]) -> list[Grad]:
    """Differentiated by torch, also in the states and gates that the layer kept."""
    return pulled_back(op, node, gs)


_ALONE = (
    "layout", "activations", "activation_alpha", "activation_beta", "output_sequence", "clip",
    "input_forget",
)  # fmt: skip
"""Attributes that the layers with a gradient operator do not have, or know one value of."""


PLAIN = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}
"""Activations of layers with a gradient operator."""


def is_plain(node: ir.Node) -> bool:
    """Whether a layer asks for nothing but what the layers with a gradient operator can do."""
    asked = [name.lower() for name in attribute(node, "activations", ())]
    special = ("layout", "clip", "input_forget")
    return (
        asked in ([], PLAIN[node.op_type], PLAIN[node.op_type] * 2)
        and not any(attribute(node, name, 0) for name in special)
        and inputs_of(node, 5)[4] is None
    )
