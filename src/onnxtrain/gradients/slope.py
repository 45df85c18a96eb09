"""Rules of the form dx = dy·f'(x), written as f' alone."""

from __future__ import annotations

import functools
from collections.abc import Callable

import onnx_ir as ir

from onnxtrain.gradients.rules import Grad, gradient
from onnxtrain.graph.builder import Ops

Slope = Callable[[Ops, ir.Node, ir.Value], ir.Value]


def slope(op_type: str, *, domain: str = "", since: int = 1) -> Callable[[Slope], Slope]:
    """Declare a function of the builder, the node and x to be the derivative of an operator."""

    def declare(derivative: Slope) -> Slope:
        @gradient(op_type, domain=domain, since=since)
        @functools.wraps(derivative)
        def rule(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
            x = node.inputs[0]
            assert x is not None
            return [op.Mul(dy, derivative(op, node, x))]

        return derivative

    return declare
