"""Values as polynomials of another value, however they are written."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.transforms.fusion.reading import is_op, number, rank

Polynomial = dict[int, float]
"""Coefficients by power."""
_MOST = 6
"""Powers above this are of no interest."""


class Reader:
    """Reads values as polynomials of x, and keeps the nodes that it passed.

    Args:
        x: The variable.
    """

    def __init__(self, x: ir.Value) -> None:
        self.x = x
        self.nodes: dict[ir.Node, None] = {}

    def read(self, value: ir.Value | None) -> Polynomial | None:
        """The polynomial that a value is, None if it is none."""
        if value is self.x:
            return {1: 1.0}
        if value is None:
            return None
        if (constant := number(value)) is not None:
            return {0: constant} if (rank(value) or 0) <= (rank(self.x) or 0) else None
        node = value.producer()
        if node is None or not is_op(node, "Add", "Sub", "Mul", "Div", "Neg", "Pow"):
            return None
        parts = [self.read(part) for part in node.inputs]
        known = [part for part in parts if part is not None]
        found = _combined(node.op_type, known) if len(known) == len(parts) else None
        if found is not None:
            self.nodes[node] = None
        return found


def _combined(op_type: str, parts: list[Polynomial]) -> Polynomial | None:
    if op_type == "Neg":
        return _times(parts[0], {0: -1.0})
    a, b = parts
    if op_type == "Add":
        return _plus(a, b)
    if op_type == "Sub":
        return _plus(a, _times(b, {0: -1.0}))
    if op_type == "Mul":
        return _times(a, b)
    if set(b) != {0}:
        return None
    if op_type == "Div":
        return _times(a, {0: 1 / b[0]}) if b[0] else None
    return _power(a, b[0])


def _plus(a: Polynomial, b: Polynomial) -> Polynomial:
    return {power: a.get(power, 0.0) + b.get(power, 0.0) for power in {*a, *b}}


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    found: Polynomial = {}
    for p, c in a.items():
        for q, d in b.items():
            found[p + q] = found.get(p + q, 0.0) + c * d
    return found


def _power(a: Polynomial, exponent: float) -> Polynomial | None:
    if exponent != int(exponent) or not 0 <= exponent <= _MOST:
        return None
    found: Polynomial = {0: 1.0}
    for _ in range(int(exponent)):
        found = _times(found, a)
    return found if max(found) <= _MOST else None
