"""Gradient of Einsum: an Einsum for each operand."""

from __future__ import annotations

import string

import onnx_ir as ir

from onnxtrain.gradients.known import operands, rank_of
from onnxtrain.gradients.rules import Grad, attribute, gradient
from onnxtrain.graph.bindings import same_dim
from onnxtrain.graph.builder import Ops
from onnxtrain.graph.inference.einsum import DOTS, parse, stretched

Factor = tuple[str, ir.Value]
"""Subscripts and a value."""


@gradient("Einsum")
def einsum(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d(operand i) = einsum of dy and the other operands, with the subscripts of operand i."""
    xs = operands(node)
    terms, result = parse(attribute(node, "equation", ""), [rank_of(x) for x in xs])
    grads: list[Grad] = []
    for index, x in enumerate(xs):
        others = [(t, v) for i, (t, v) in enumerate(zip(terms, xs, strict=True)) if i != index]
        grads.append(_operand(op, (terms[index], x), (result, dy), others))
    return grads


def _operand(op: Ops, own: Factor, whole: Factor, others: list[Factor]) -> ir.Value:
    """The gradient of one operand.

    A letter that only this operand has was summed away, so the gradient is the same along it. A
    letter that it has twice picks a diagonal, so the gradient is zero off that diagonal. An
    ellipsis of unknown length comes first meanwhile, where the axes that it lacks are summed.
    """
    wanted, diagonals = _distinct(op, own, "".join(t for t, _ in [whole, *others]))
    factors = [whole, *others, *diagonals]
    present = {*"".join(t for t, _ in factors)}
    order = DOTS * (DOTS in wanted) + wanted.replace(DOTS, "")
    kept = DOTS * (DOTS in present) + "".join(c for c in order if c in present - {DOTS})
    grad = _product(op, factors, kept)
    like = own[1] if order == wanted else _product(op, [(wanted, own[1])], order)
    missing = [i - len(order) for i, c in enumerate(order) if c not in present and c != DOTS]
    if missing:
        grad = op.unsqueeze(grad, missing)
    full = {*whole[0], *"".join(t[1] for t, _ in diagonals)}
    if not _covers(grad, like, [c in full for c in order]):
        grad = _grown(op, grad, like)
    grad = op.unbroadcast(grad, to=like)
    return grad if order == wanted else _product(op, [(order, grad)], wanted)


def _product(op: Ops, factors: list[Factor], result: str) -> ir.Value:
    equation = ",".join(t for t, _ in factors) + "->" + result
    values = [value for _, value in factors]
    return op.Einsum(*values, equation=equation.replace(DOTS, "..."))


def _distinct(op: Ops, own: Factor, used: str) -> tuple[str, list[Factor]]:
    """The subscripts with a letter of their own for each axis, and what makes two of them equal."""
    term, x = own
    unused = (c for c in string.ascii_letters if c not in used + term)
    wanted, diagonals = "", []
    for position, letter in enumerate(term):
        if letter in wanted:
            fresh = next(unused)
            axes = [_axis(term, place) for place in (term.index(letter), position)]
            diagonals.append((letter + fresh, _identity(op, x, *axes)))
            wanted += fresh
        else:
            wanted += letter
    return wanted, diagonals


def _axis(term: str, position: int) -> int:
    """Where a letter is: counted from the end if an ellipsis is in front of it."""
    return position - len(term) if DOTS in term[:position] else position


def _covers(grad: ir.Value, like: ir.Value, full: list[bool]) -> bool:
    """Whether a gradient has each axis in the size of the operand, or in a larger one.

    That is so where dy has the axis; where all other operands have size 1 there, it has not.
    """
    if all(full):
        return True
    have, want = list(grad.shape or ()), list(like.shape or ())
    if len(want) != len(full) or len(have) < len(full):
        return False
    return all(
        whole or w == 1 or (isinstance(h, int) and h != 1) or same_dim(h, w)
        for whole, h, w in zip(full, have[-len(full) :], want, strict=True)
    )


def _grown(op: Ops, grad: ir.Value, like: ir.Value) -> ir.Value:
    """A gradient that is the same along the axes that it lacks."""
    result = op.expand(grad, like)
    if grad.shape is not None and like.shape is not None and len(grad.shape) == len(like.shape):
        pairs = zip(grad.shape, like.shape, strict=True)
        result.shape = ir.Shape([stretched(pair) for pair in pairs])
    return result


def _identity(op: Ops, x: ir.Value, first: int, second: int) -> ir.Value:
    """Ones where two axes of x have the same index."""
    zero, one = op.const(0), op.const(1)
    sizes = [op.Gather(op.shape(x), op.const(axis), axis=0) for axis in (first, second)]
    along = [op.Range(zero, size, one) for size in sizes]
    return op.cast(op.Equal(op.unsqueeze(along[0], [1]), op.unsqueeze(along[1], [0])), x)
