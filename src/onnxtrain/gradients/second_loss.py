"""Gradients of the gradient operators of losses."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.chain import through
from onnxtrain.gradients.known import inputs_of, last_axis, operands
from onnxtrain.gradients.likelihood import Likelihood
from onnxtrain.gradients.loss import ignored_label, one_hot, per_sample, reduction_of
from onnxtrain.gradients.reduction import nonzero
from onnxtrain.gradients.rules import Grad, attribute, gradient
from onnxtrain.gradients.vector_jacobian import pulled_back
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS, OWN


@gradient("CrossEntropyWithGrad", "LinearCrossEntropyWithGrad", domain=OWN, all_outputs=True)
def cross_entropy_with_grad(op: Ops, node: ir.Node, gs: Sequence[Grad]) -> list[Grad]:
    """By torch: the loss and its gradient, each written with log softmax."""
    return pulled_back(op, node, gs)


@gradient("SoftmaxCrossEntropyLossGrad", domain=MS)
def softmax_cross_entropy_loss_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """(exp(log_prob) - onehot)·w·dY, differentiated by dY, log_prob and the weights of classes."""
    _, _, labels = operands(node)[:3]
    ignore = ignored_label(op, labels, attribute(node, "ignore_index", None))
    return _labelled(op, node, g, ignore)[: len(node.inputs)]


@gradient("SoftmaxCrossEntropyLossInternalGrad", domain=MS)
def softmax_cross_entropy_loss_internal_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """The same with the ignored index as an input, and a bias that is added."""
    _, log_prob, labels, _, ignored, bias = inputs_of(node, 6)
    assert log_prob is not None and labels is not None
    added = None if bias is None else op.cast(op.reshape_like(g, bias), bias)
    found = _labelled(op, node, op.cast(g, log_prob), ignored_label(op, labels, ignored))
    return [*found, None, added][: len(node.inputs)]


def _labelled(op: Ops, node: ir.Node, g: ir.Value, ignore: ir.Value) -> list[Grad]:
    """Gradients of dY, log_prob, labels and weights."""
    dy, log_prob, labels, weights = inputs_of(node, 4)
    assert dy is not None and log_prob is not None and labels is not None

    def formula(op: Ops, dy: ir.Value, log_prob: ir.Value, *by_class: ir.Value) -> list[ir.Value]:
        weights = by_class[0] if by_class else None
        likelihood = Likelihood(op, log_prob, labels, weights, ignore, reduction_of(node))
        softened = op.Mul(op.Exp(log_prob), op.unsqueeze(likelihood.each(dy), [1]))
        return [op.Add(softened, likelihood.scores_grad(dy))]

    leaves = [dy, log_prob] if weights is None else [dy, log_prob, weights]
    d_dy, d_log, *d_weights = through(op, formula, leaves, [g])
    return [d_dy, d_log, None, *(d_weights or [None])]


@gradient("SoftmaxCrossEntropyGrad", domain=MS)
def softmax_cross_entropy_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """(exp(log_prob) - label)·dY, divided by the number of samples for a mean."""

    def formula(op: Ops, dy: ir.Value, log_prob: ir.Value, label: ir.Value) -> list[ir.Value]:
        share = per_sample(op, node, dy, log_prob)
        return [op.Mul(op.Sub(op.Exp(log_prob), label), share)]

    return through(op, formula, operands(node), [g])


@gradient("SparseSoftmaxCrossEntropyGrad")
def sparse_softmax_cross_entropy_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """(exp(log_prob) - onehot)·w·dY, divided by Σw for a mean."""
    dy, log_prob, label, weight = inputs_of(node, 4)
    assert dy is not None and log_prob is not None and label is not None
    last = last_axis(op, log_prob, node.op_type)
    reduction = reduction_of(node)

    def formula(op: Ops, dy: ir.Value, log_prob: ir.Value, w: ir.Value) -> list[ir.Value]:
        share = op.Mul(dy, w)
        if reduction == "mean":
            share = op.Div(share, nonzero(op, op.reduce_sum(w, None, keepdims=False)))
        rest = op.Sub(op.Exp(log_prob), one_hot(op, label, log_prob))
        return [op.Mul(rest, op.unsqueeze(share, [last]))]

    weights = op.filled(1, shape_of=label, like=log_prob) if weight is None else weight
    d_dy, d_log, d_weight = through(op, formula, [dy, log_prob, weights], [g])
    return [d_dy, d_log, None, d_weight][: len(node.inputs)]
