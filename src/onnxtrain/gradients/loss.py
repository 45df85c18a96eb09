"""Gradients of cross entropy losses; the gradient of the log-probabilities counts too."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.known import inputs_of, last_axis, operands, output_of
from onnxtrain.gradients.likelihood import Likelihood
from onnxtrain.gradients.reduction import count_along, nonzero
from onnxtrain.gradients.rules import Grad, attribute, forwarded, gradient
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS


def _log_prob(node: ir.Node) -> ir.Value:
    """The log-probabilities, which the node returns from now on."""
    scores, loss = node.inputs[0], node.outputs[0]
    assert scores is not None and loss.dtype is not None
    return output_of(node, 1, "_log_prob", loss.dtype, scores.shape)


def _both(dys: Sequence[Grad]) -> tuple[Grad, Grad]:
    """The gradients of the loss and of the log-probabilities."""
    return dys[0], dys[1] if len(dys) > 1 else None


@gradient("SoftmaxCrossEntropyLoss", all_outputs=True)
def softmax_cross_entropy_loss(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """(exp(log_prob) - onehot)·w[label]·dy, divided by Σw for a mean."""
    _, labels, weights = inputs_of(node, 3)
    assert labels is not None
    log_prob = _log_prob(node)
    dy, d_log = _both(dys)
    grads: list[Grad] = [None, None, None]
    if dy is not None:
        grads[0] = op.SoftmaxCrossEntropyLossGrad(
            dy, log_prob, labels, weights, **forwarded(node), _domain=MS
        )
        ignore = ignored_label(op, labels, attribute(node, "ignore_index", None))
        likelihood = Likelihood(op, log_prob, labels, weights, ignore, reduction_of(node))
        grads[2] = likelihood.weight_grad(dy)
    if d_log is not None:
        direct = op.LogSoftmaxGrad_13(d_log, log_prob, axis=1, _domain=MS)
        grads[0] = op.add(grads[0], direct)
    return grads[: len(node.inputs)]


def ignored_label(op: Ops, labels: ir.Value, given: int | Grad) -> ir.Value:
    """The label that a cross entropy does not count: as an attribute or an input says, or -1."""
    if isinstance(given, ir.Value):
        return op.cast(op.Reshape(given, op.ints([1])), labels)
    return op.const(-1 if given is None else given, labels.dtype)


def reduction_of(node: ir.Node) -> str:
    """How the losses of samples become one number, if they do."""
    return str(attribute(node, "reduction", "mean"))


@gradient("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """-w[target]·dy at the targets, divided by Σw for a mean."""
    scores, target, weights = inputs_of(node, 3)
    assert scores is not None and target is not None
    ignored = attribute(node, "ignore_index", None)
    ignore = None if ignored is None else op.const(ignored, target.dtype)
    likelihood = Likelihood(op, scores, target, weights, ignore, reduction_of(node))
    grads = [likelihood.scores_grad(dy), None, likelihood.weight_grad(dy)]
    return grads[: len(node.inputs)]


@gradient("NegativeLogLikelihoodLossInternal", "NegativeLogLikelihoodLossInternal2", domain=MS)
def negative_log_likelihood_internal(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The same with the ignored index as an input."""
    scores, target, weights, ignored = inputs_of(node, 4)
    assert scores is not None and target is not None
    ignore = None if ignored is None else op.cast(op.Reshape(ignored, op.ints([1])), target)
    likelihood = Likelihood(op, scores, target, weights, ignore, reduction_of(node))
    grads = [likelihood.scores_grad(dy), None, likelihood.weight_grad(dy), None]
    return grads[: len(node.inputs)]


@gradient("SoftmaxCrossEntropyLossInternal", domain=MS, all_outputs=True)
def softmax_cross_entropy_loss_internal(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """SoftmaxCrossEntropyLoss with the ignored index as an input and a type of its own."""
    scores, labels, weights, ignored = inputs_of(node, 4)
    assert scores is not None and labels is not None
    log_prob = _log_prob(node)
    dy, d_log = _both(dys)
    grads: list[Grad] = [None, None, None, None]
    if dy is not None:
        by_class = None if weights is None else op.cast(weights, log_prob)
        grads[0] = op.SoftmaxCrossEntropyLossInternalGrad(
            dy,
            log_prob,
            labels,
            by_class,
            ignored,
            **forwarded(node, "output_type"),
            output_type=scores.dtype,
            _domain=MS,
        )
        ignore = ignored_label(op, labels, ignored)
        likelihood = Likelihood(op, log_prob, labels, by_class, ignore, reduction_of(node))
        by_weight = likelihood.weight_grad(dy)
        if weights is not None and by_weight is not None:
            grads[2] = op.cast(by_weight, weights)
    if d_log is not None:
        direct = op.LogSoftmaxGrad_13(d_log, log_prob, axis=1, _domain=MS)
        grads[0] = op.add(grads[0], op.cast(direct, scores))
    return grads[: len(node.inputs)]


@gradient("SoftmaxCrossEntropy", domain=MS, all_outputs=True)
def softmax_cross_entropy(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """(exp(log_prob)·Σ label - label)·dy/N for the logits, -log_prob·dy/N for the labels.

    The labels need not add up to 1.
    """
    _, label = operands(node)
    log_prob = _log_prob(node)
    dy, d_log = _both(dys)
    d_label: Grad = None
    if dy is not None:
        share = per_sample(op, node, dy, log_prob)
        d_label = op.Neg(op.Mul(log_prob, share))
        d_log = op.add(d_log, op.Neg(op.Mul(label, share)))
    if d_log is None:
        return [None, None]
    return [op.LogSoftmaxGrad_13(d_log, log_prob, axis=-1, _domain=MS), d_label]


def per_sample(op: Ops, node: ir.Node, dy: ir.Value, log_prob: ir.Value) -> ir.Value:
    """dy, divided by the number of samples for a mean, in a shape that broadcasts."""
    if reduction_of(node) == "none":
        return op.unsqueeze(dy, [last_axis(op, log_prob, "SoftmaxCrossEntropy")])
    if reduction_of(node) == "sum":
        return dy
    last = last_axis(op, log_prob, "SoftmaxCrossEntropy")
    if last < 0:
        samples = op.Div(op.Size(log_prob), count_along(op, log_prob, [last]))
    else:
        samples = count_along(op, log_prob, range(last))
    return op.Scale(dy, samples, scale_down=1, _domain=MS)


@gradient("SparseSoftmaxCrossEntropy", all_outputs=True)
def sparse_softmax_cross_entropy(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """(exp(log_prob) - onehot)·w·dy, divided by Σw for a mean; classes are the last axis.

    A weight gets -log_prob·dy of its sample, of which a mean takes the loss off and divides by Σw.
    """
    _, label, weight = inputs_of(node, 3)
    assert label is not None
    log_prob = _log_prob(node)
    dy, d_log = _both(dys)
    grads: list[Grad] = [None, None, None]
    if dy is not None:
        grads[0] = op.SparseSoftmaxCrossEntropyGrad(dy, log_prob, label, weight, **forwarded(node))
        grads[2] = _sample_weight(op, node, dy, log_prob)
    if d_log is not None:
        direct = op.LogSoftmaxGrad_13(d_log, log_prob, axis=-1, _domain=MS)
        grads[0] = op.add(grads[0], direct)
    return grads[: len(node.inputs)]


def _sample_weight(op: Ops, node: ir.Node, dy: ir.Value, log_prob: ir.Value) -> Grad:
    _, label, weight = inputs_of(node, 3)
    if label is None or weight is None:
        return None
    last = last_axis(op, log_prob, "SparseSoftmaxCrossEntropy")
    picked = op.Mul(log_prob, one_hot(op, label, log_prob))
    losses = op.Neg(op.reduce_sum(picked, [last], keepdims=False))
    if reduction_of(node) != "mean":
        return op.Mul(losses, dy)
    total = nonzero(op, op.reduce_sum(weight, None, keepdims=False))
    return op.Mul(op.Div(op.Sub(losses, node.outputs[0]), total), dy)


def one_hot(op: Ops, label: ir.Value, log_prob: ir.Value) -> ir.Value:
    """1 at the label of each sample, 0 at other classes, which are the last axis."""
    last = last_axis(op, log_prob, "SparseSoftmaxCrossEntropy")
    classes = op.Gather(op.shape(log_prob), op.ints([last]), axis=0)
    return op.OneHot(label, classes, op.const([0, 1], log_prob.dtype))
