"""Equations of Einsum, and the shapes of its results.

ONNX's inference takes the size of a named axis from the first operand that has it. Every runtime
broadcasts: an axis of size 1 is stretched to the size that it has in the other operands.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.graph.bindings import same_dim
from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import ONNX

DOTS = "."
"""What stands for an ellipsis of unknown length, in place of its three dots."""
_TERM = r"[A-Za-z]*(?:\.\.\.)?[A-Za-z]*"
_EQUATION = re.compile(rf"{_TERM}(?:,{_TERM})*(?:->{_TERM})?")

Dim = int | ir.SymbolicDim
Operand = tuple[str, ir.Shape | None]
"""Subscripts and a shape."""


def is_einsum(node: ir.Node) -> bool:
    """Whether a node is an Einsum."""
    return node.domain == ONNX and node.op_type == "Einsum"


def check_equations(model: ir.Model) -> None:
    """See that all equations can be read; ONNX's inference hangs on some that cannot.

    Raises:
        GraphError: if one cannot.
    """
    for node in all_nodes(model.graph):
        if is_einsum(node):
            _check(node)


def _check(node: ir.Node) -> None:
    equation = _equation(node)
    if not _EQUATION.fullmatch(equation.replace(" ", "")):
        raise _refusal(node, "it is no list of terms", "write it like 'ij,jk->ik' or '...i,i'")
    count = equation.partition("->")[0].count(",") + 1
    if count != len(node.inputs):
        what = f"it has {count} terms for {len(node.inputs)} operands"
        raise _refusal(node, what, "write one term for each operand, with commas between them")
    terms, result = parse(equation, [None] * count)
    if new := sorted({*result} - {DOTS, *"".join(terms)}):
        what = f"axis '{new[0]}' of the result is in no operand"
        raise _refusal(node, what, "name only axes that operands have behind '->'")
    if len({*result}) < len(result):
        raise _refusal(node, "its result has an axis twice", "name each axis once behind '->'")


def _equation(node: ir.Node) -> str:
    return str(node.attributes.get_string("equation", ""))


def _refusal(node: ir.Node, what: str, cure: str) -> GraphError:
    return GraphError(
        f"cannot read equation '{_equation(node)}' of node '{node.name}' (Einsum): {what}\n  {cure}"
    )


def parse(equation: str, ranks: Sequence[int | None]) -> tuple[list[str], str]:
    """Subscripts of the operands and of the result, an ellipsis written out as letters.

    If a rank that this takes is not known, every ellipsis is a single ``DOTS``.
    """
    left, arrow, result = equation.replace(" ", "").replace("...", DOTS).partition("->")
    terms = left.split(",")
    if not arrow:
        once = sorted(c for c in set(left) - {DOTS, ","} if left.count(c) == 1)
        result = DOTS * (DOTS in left) + "".join(once)
    hidden: list[int] = []
    for term, rank in zip(terms, ranks, strict=True):
        if DOTS in term and rank is None:
            return terms, result
        hidden.append(rank - len(term) + 1 if DOTS in term and rank is not None else 0)
    unused = [c for c in string.ascii_letters if c not in equation]
    letters = "".join(unused[: max(hidden)])
    terms = [
        term.replace(DOTS, letters[len(letters) - count :])
        for term, count in zip(terms, hidden, strict=True)
    ]
    return terms, result.replace(DOTS, letters)


def result_shape(node: ir.Node) -> ir.Shape | None:
    """The shape of the result of an Einsum, None if its rank is not known.

    Raises:
        GraphError: if the equation cannot be read, or operands do not have the axes that it names,
            or in sizes that do not broadcast.
    """
    _check(node)
    _check_ranks(node)
    operands, result = _operands(node)
    if DOTS in result:
        return None
    summed = sorted({*"".join(term for term, _ in operands)} - {DOTS, *result})
    sizes = [_size(node, letter, operands) for letter in [*result, *summed]]
    return ir.Shape(sizes[: len(result)])


def is_misread(node: ir.Node) -> bool:
    """Whether ONNX's inference of a whole model found another shape than ``result_shape``.

    Sizes that the first operand with an axis does not have were not inferred, but declared.
    """
    if not is_einsum(node):
        return False
    right, found = result_shape(node), node.outputs[0].shape
    if right is None or found is None or len(right) != len(found):
        return right is not None
    operands, result = _operands(node)
    firsts = [_sizes(letter, operands)[0] for letter in result]
    return any(
        have == first and not same_dim(have, want)
        for have, first, want in zip(found, firsts, right, strict=True)
    )


def stretched(dims: Sequence[Dim]) -> Dim:
    """The size that sizes broadcast to; unknown if a run must tell."""
    others = [dim for dim in dims if dim != 1]
    for dim in others:
        if isinstance(dim, int):
            return dim
    if not others:
        return 1
    names = {dim.value for dim in others if isinstance(dim, ir.SymbolicDim)}
    return others[0] if len(names) == 1 and None not in names else ir.SymbolicDim(None)


def _check_ranks(node: ir.Node) -> None:
    """See that every operand has as many axes as its term names."""
    terms = _equation(node).replace(" ", "").partition("->")[0].split(",")
    for term, value in zip(terms, node.inputs, strict=True):
        if value is None or value.shape is None:
            continue
        named, rank = len(term.replace("...", "")), len(value.shape)
        if rank < named or (rank > named and "..." not in term):
            what = f"term '{term}' names {named} axes, '{value.name}' has {rank}"
            raise _refusal(node, what, "name every axis, '...' stands for those without a name")


def _operands(node: ir.Node) -> tuple[list[Operand], str]:
    """Subscripts and shapes of the operands, and the subscripts of the result."""
    shapes = [None if value is None else value.shape for value in node.inputs]
    ranks = [None if shape is None else len(shape) for shape in shapes]
    terms, result = parse(_equation(node), ranks)
    return list(zip(terms, shapes, strict=True)), result


def _sizes(letter: str, operands: Sequence[Operand]) -> list[Dim]:
    """The sizes of a named axis in all operands that have it."""
    found: list[Dim] = []
    for term, shape in operands:
        for position, name in enumerate(term):
            if name == letter:
                place = position - len(term) if DOTS in term[:position] else position
                found.append(ir.SymbolicDim(None) if shape is None else shape[place])
    return found


def _size(node: ir.Node, letter: str, operands: Sequence[Operand]) -> Dim:
    """The size of a named axis; a diagonal is not broadcast."""
    own = [_sizes(letter, [operand]) for operand in operands]
    sizes = sorted({dim for dims in own for dim in dims if isinstance(dim, int) and dim != 1})
    alike: list[Sequence[Dim]] = [*own, sizes]
    for dims in alike:
        if len(known := sorted({dim for dim in dims if isinstance(dim, int)})) > 1:
            what = f"axis '{letter}' has the sizes {' and '.join(map(str, known))}"
            cure = "give it one size, or 1 in the operands that are to be broadcast"
            raise _refusal(node, what, cure)
    return stretched([dim for dims in own for dim in dims])
