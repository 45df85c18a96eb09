"""The chain rule inside a rule: write an operator as a formula and differentiate that."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from onnxtrain.errors import NoGradientError
from onnxtrain.gradients.rules import Grad, find_rule
from onnxtrain.graph.bindings import opset_of
from onnxtrain.graph.builder import Ops
from onnxtrain.types import FLOATS, op_name

Formula = Callable[..., Sequence[ir.Value]]


def through(op: Ops, formula: Formula, xs: Sequence[ir.Value], dys: Sequence[Grad]) -> list[Grad]:
    """Gradients of the xs of a formula, given those of its results (None: not used).

    Args:
        op: Where nodes are emitted.
        formula: Takes the builder and the xs, gives the results.
        xs: What to differentiate by.
        dys: One gradient per result.
    """
    leaves = [op.Identity(x) for x in xs]
    first = len(op.nodes)
    results = formula(op, *leaves)
    grads: dict[ir.Value, Grad] = {}
    for result, dy in zip(results, dys, strict=True):
        grads[result] = op.add(grads.get(result), dy)
    for node in reversed(op.nodes[first:]):
        _visit(op, node, grads)
    return [grads.get(leaf) for leaf in leaves]


def _visit(op: Ops, node: ir.Node, grads: dict[ir.Value, Grad]) -> None:
    dys = [grads.get(value) for value in node.outputs]
    if all(dy is None for dy in dys):
        return
    rule = find_rule(node.domain, node.op_type, opset_of(node, op.graph.opset_imports))
    if rule is None:
        raise NoGradientError(f"no gradient rule for {op_name(node.domain, node.op_type)}")
    for value, grad in rule.pairs(op, node, dys, ()):
        if value.dtype in FLOATS:
            grads[value] = op.add(grads.get(value), grad)
