"""Gradients of operators that training graphs themselves are made of.

What overwrites state (optimizers, accumulators) or stands for a compressed copy has no rule, so
that a graph which is differentiated through it is refused instead of differentiated wrongly.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.chain import through
from onnxtrain.gradients.known import operands, output_of
from onnxtrain.gradients.reduction import nonzero
from onnxtrain.gradients.rules import Grad, attribute, gradient, no_gradient
from onnxtrain.gradients.vector_jacobian import pulled_back
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS, TRAINING

no_gradient("Group", "SummaryHistogram", "SummaryMerge", "SummaryScalar", "SummaryText", domain=MS)


@gradient("PassThrough", domain=MS, all_outputs=True)
def pass_through(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """dy for each."""
    return [*dys, *[None] * len(node.inputs)][: len(node.inputs)]


@gradient("RecordEvent", "WaitEvent", domain=MS, all_outputs=True)
def event(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """dy for each of the data behind the number of the event."""
    return [None, *dys, *[None] * len(node.inputs)][: len(node.inputs)]


@gradient("View", domain=MS, all_outputs=True)
def view(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """The parts laid end to end again, zeros for those that nobody used."""
    x = node.inputs[0]
    assert x is not None and x.dtype is not None
    parts = []
    for index, dy in enumerate(dys):
        like = output_of(node, index, f"_part{index}", x.dtype)
        part = op.filled(0, shape_of=like, like=x) if dy is None else dy
        parts.append(op.Reshape(part, op.ints([-1])))
    whole = parts[0] if len(parts) == 1 else op.Concat(*parts, axis=0)
    return [op.reshape_like(whole, x), *[None] * (len(node.inputs) - 1)]


@gradient("MixedPrecisionScale", domain=MS, all_outputs=True)
def mixed_precision_scale(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """Y = S·X in another type: S·dY for each X, and Σ X·dY for S."""
    return pulled_back(op, node, dys)


@gradient("ReduceAllL2", domain=MS)
def reduce_all_l2(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """x·dy/y for each, 0 where y is 0."""
    share = op.Div(dy, nonzero(op, node.outputs[0]))
    return [op.Mul(x, op.cast(share, x)) for x in operands(node)]


@gradient("NcclAllReduce", domain=MS, all_outputs=True)
def nccl_all_reduce(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """What all processes got is what each gave, so their gradients are summed as well."""
    xs = operands(node)
    full = [
        op.filled(0, shape_of=x, like=x) if d is None else d for x, d in zip(xs, dys, strict=True)
    ]
    group = attribute(node, "group_type", 0)
    found = op.emit("NcclAllReduce", full, group_type=group, _outputs=len(xs), _domain=MS)
    return [found] if len(xs) == 1 else list(found)


@gradient("Adagrad", "Adam", "Momentum", domain=TRAINING, all_outputs=True)
def onnx_optimizer(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """A step that changes nothing in place is a function like any other."""
    return pulled_back(op, node, dys)


@gradient("DivGrad", domain=MS, all_outputs=True)
def div_grad(op: Ops, node: ir.Node, gs: Sequence[Grad]) -> list[Grad]:
    """dA = dY/B and dB = -dY·A/B², each summed back to its shape."""

    def formula(op: Ops, dy: ir.Value, a: ir.Value, b: ir.Value) -> list[ir.Value]:
        d_a = op.Div(dy, b)
        d_b = op.Neg(op.Mul(d_a, op.Div(a, b)))
        return [op.unbroadcast(d_a, to=a), op.unbroadcast(d_b, to=b)]

    return through(op, formula, operands(node), [*gs, None][:2])


@gradient("InvertibleLayerNormalizationGrad", "MatMulNBitsGrad", domain=MS, all_outputs=True)
def gradient_operator(op: Ops, node: ir.Node, gs: Sequence[Grad]) -> list[Grad]:
    """Differentiated by torch, in everything that it takes."""
    return pulled_back(op, node, gs)
