"""Gradient of Einsum: an Einsum for each operand."""

from __future__ import annotations

import string

import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.gradients.known import operands, rank_of
from onnxtrain.gradients.rules import Grad, attribute, gradient
from onnxtrain.graph.builder import Ops


@gradient("Einsum")
def einsum(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d(operand i) = einsum of dy and the other operands, with the subscripts of operand i."""
    xs = operands(node)
    terms, result = _parse(attribute(node, "equation", ""), xs)
    grads: list[Grad] = []
    for index, x in enumerate(xs):
        others = [(t, v) for i, (t, v) in enumerate(zip(terms, xs, strict=True)) if i != index]
        grads.append(_operand(op, x, terms[index], [(result, dy), *others]))
    return grads


def _parse(equation: str, xs: list[ir.Value]) -> tuple[list[str], str]:
    """Subscripts of the operands and of the result, ``...`` written out as letters."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    unused = [c for c in string.ascii_letters if c not in equation]
    widest = max((_hidden(term, x) for term, x in zip(terms, xs, strict=True)), default=0)
    letters = "".join(unused[:widest])
    terms = [
        t.replace("...", letters[widest - _hidden(t, x) :]) for t, x in zip(terms, xs, strict=True)
    ]
    if arrow:
        return terms, right.replace("...", letters)
    used = "".join(terms)
    once = sorted(c for c in set(used) - set(letters) if used.count(c) == 1)
    return terms, letters + "".join(once)


def _hidden(term: str, x: ir.Value) -> int:
    """How many dimensions the ``...`` of a term stands for."""
    if "..." not in term:
        return 0
    rank = rank_of(x)
    if rank is None:
        raise GraphError(
            f"the rank of '{x.name}' is not known, the gradient of Einsum with '...' needs it"
        )
    return rank - len(term.replace("...", ""))


def _operand(op: Ops, x: ir.Value, term: str, factors: list[tuple[str, ir.Value]]) -> ir.Value:
    """The gradient of one operand.

    A letter that only this operand has was summed away, so the gradient is the same along it. A
    letter that it has twice picks a diagonal, so the gradient is zero off that diagonal.
    """
    known = "".join(t for t, _ in factors)
    unused = (c for c in string.ascii_letters if c not in known + term)
    wanted = ""
    for position, letter in enumerate(term):
        if letter in wanted:
            fresh = next(unused)
            factors = [*factors, (letter + fresh, _identity(op, x, term.index(letter), position))]
            wanted += fresh
        else:
            wanted += letter
    present = {*"".join(t for t, _ in factors)}
    kept = "".join(c for c in wanted if c in present)
    equation = ",".join(t for t, _ in factors) + "->" + kept
    grad = op.Einsum(*(value for _, value in factors), equation=equation)
    missing = [index for index, c in enumerate(wanted) if c not in present]
    if missing:
        return op.expand(op.unsqueeze(grad, missing), x)
    return op.unbroadcast(grad, to=x)


def _identity(op: Ops, x: ir.Value, first: int, second: int) -> ir.Value:
    """Ones where two axes of x have the same index."""
    zero, one = op.const(0), op.const(1)
    sizes = [op.Gather(op.shape(x), op.const(axis), axis=0) for axis in (first, second)]
    along = [op.Range(zero, size, one) for size in sizes]
    return op.cast(op.Equal(op.unsqueeze(along[0], [1]), op.unsqueeze(along[1], [0])), x)
