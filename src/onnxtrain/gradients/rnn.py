"""Gradients of the recurrent layers that keep what their gradients need."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.errors import NoGradientError
from onnxtrain.gradients.known import inputs_of, output_of
from onnxtrain.gradients.rules import Grad, attribute, forwarded, gradient
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


@gradient("LSTM", all_outputs=True)
def plain_lstm(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """Run again as LSTMTraining, which keeps what the gradient needs."""
    x, w, r, _, lengths, h0, c0, peepholes = inputs_of(node, 8)
    options = _options(node, ["sigmoid", "tanh", "tanh"])
    every, _, _, cells, gates = op.LSTMTraining(*node.inputs, **options, _outputs=5, _domain=MS)
    arrived = [*dys, None, None][:3]
    states = [x, w, r, lengths, h0, c0, every, cells, gates, *arrived, peepholes]
    d_x, d_w, d_r, d_b, d_h0, d_c0, d_p = op.LSTMGrad(*states, **options, _outputs=7, _domain=MS)
    return [d_x, d_w, d_r, d_b, None, d_h0, d_c0, d_p][: len(node.inputs)]


@gradient("GRU", all_outputs=True)
def plain_gru(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """Run again as GRUTraining, which keeps what the gradient needs."""
    x, w, r, b, lengths, h0 = inputs_of(node, 6)
    options = _options(node, ["sigmoid", "tanh"])
    every, _, gates = op.GRUTraining(*node.inputs, **options, _outputs=3, _domain=MS)
    states = [x, w, r, b, lengths, h0, every, gates, *[*dys, None][:2]]
    d_x, d_w, d_r, d_b, d_h0 = op.GRUGrad(*states, **options, _outputs=5, _domain=MS)
    return [d_x, d_w, d_r, d_b, None, d_h0][: len(node.inputs)]


@gradient("RNN", all_outputs=True)
def rnn(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """A layer of tanh is a GRU whose update gate is 0 and whose reset gate is 1."""
    x, w, r, _, lengths, h0 = inputs_of(node, 6)
    assert x is not None and w is not None and r is not None and x.dtype is not None
    options = {**_options(node, ["tanh"]), "linear_before_reset": 1}
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


def _options(node: ir.Node, activations: list[str]) -> dict[str, ir.Attr]:
    """Attributes that the layers with a gradient share with those without.

    Raises:
        NoGradientError: if the node asks for something that they cannot do.
    """
    if attribute(node, "layout", 0):
        raise NoGradientError(
            f"no gradient of {node.op_type} with layout 1, node '{node.name}'\n"
            "  transpose its input and output instead"
        )
    asked = [name.lower() for name in attribute(node, "activations", ())]
    if asked not in ([], activations, activations * 2):
        raise NoGradientError(
            f"no gradient of {node.op_type} with activations {', '.join(asked)}, "
            f"node '{node.name}'\n  allowed are {', '.join(activations)}"
        )
    return forwarded(node, "layout", "activations", "activation_alpha", "activation_beta")
