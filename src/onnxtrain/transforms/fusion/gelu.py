"""Gelu: x/2·(1 + erf(x/√2)), and its approximation x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.pattern import Match, Pattern, Refusal
from onnxtrain.transforms.fusion.polynomial import Polynomial, Reader
from onnxtrain.transforms.fusion.reading import (
    close,
    factor_of,
    keeps_rank,
    number,
    only_reader,
    pairs,
)
from onnxtrain.types import MS, DataType

_ROOT = math.sqrt(2 / math.pi)
_INNER: dict[str, Polynomial] = {
    "Erf": {1: math.sqrt(0.5)},
    "Tanh": {1: _ROOT, 3: _ROOT * 0.044715},
}
"""What the inner function is of, as a polynomial of x."""
_GELU_SINCE = 20


@dataclasses.dataclass(frozen=True)
class _Product:
    """A product with 1 + f(·) as one of its factors.

    Attributes:
        nodes: Those behind f.
        factor: The numbers among the other factors.
        rest: The only other factor, None as long as there is none.
    """

    nodes: tuple[ir.Node, ...]
    factor: float
    rest: ir.Value | None


def match(node: ir.Node) -> Match | None:
    """Gelu around an Erf or a Tanh."""
    total = only_reader(node.outputs[0], "Add")
    if total is None or not any(a is node.outputs[0] and number(b) == 1 for a, b in pairs(total)):
        return None
    reason = None
    for product in _products(total):
        for x, factor, scaling in _unscaled(product.rest):
            reader = Reader(x)
            found = reader.read(node.inputs[0])
            if found is None:
                continue
            if not close(factor * product.factor, 0.5, x.dtype):
                reason = f"the product has a factor of {factor * product.factor:g}, not 0.5"
                continue
            if not _agrees(found, _INNER[node.op_type], x.dtype):
                reason = f"{node.op_type} is of {_shown(found)}, not {_shown(_INNER[node.op_type])}"
                continue
            if not keeps_rank(product.nodes[-1], x):
                reason = "a number of more dimensions than the data adds dimensions to it"
                continue
            inner = dict.fromkeys((*reader.nodes, *scaling))
            return Match((*inner, node, *product.nodes), _emitter(node.op_type, x))
    if reason is not None:
        raise Refusal(reason)
    return None


def _products(total: ir.Node) -> Iterator[_Product]:
    """Products of 1 + f(·), one factor more each, as long as it is read once."""
    found = _Product((total,), 1.0, None)
    while (node := only_reader(found.nodes[-1].outputs[0], "Mul", "Div")) is not None:
        value = found.nodes[-1].outputs[0]
        scaled = factor_of(node)
        if scaled is not None and scaled[0] is value:
            factor, rest = found.factor * scaled[1], found.rest
        elif node.op_type == "Mul" and found.rest is None:
            factor, rest = found.factor, next((b for a, b in pairs(node) if a is value), None)
        else:
            return
        found = _Product((*found.nodes, node), factor, rest)
        yield found


def _unscaled(value: ir.Value | None) -> Iterator[tuple[ir.Value, float, tuple[ir.Node, ...]]]:
    """A value, and what it is a multiple of: that, the factor, and the nodes in between."""
    factor, nodes = 1.0, ()  # type: float, tuple[ir.Node, ...]
    while value is not None:
        yield value, factor, nodes
        node = value.producer()
        scaled = None if node is None else factor_of(node)
        if node is None or scaled is None:
            return
        value, factor, nodes = scaled[0], factor * scaled[1], (node, *nodes)


def _agrees(found: Polynomial, wanted: Polynomial, dtype: DataType | None) -> bool:
    return found.keys() == wanted.keys() and all(
        close(found[power], wanted[power], dtype) for power in wanted
    )


def _shown(polynomial: Polynomial) -> str:
    """A polynomial in the way one writes it."""
    return " + ".join(f"{c:g}·x^{power}" for power, c in sorted(polynomial.items()))


def _emitter(op_type: str, x: ir.Value) -> Callable[[Ops], ir.Value]:
    def emit(op: Ops) -> ir.Value:
        if op.opset >= _GELU_SINCE:
            return op.Gelu(x, approximate="tanh" if op_type == "Tanh" else None)
        return op.FastGelu(x, _domain=MS) if op_type == "Tanh" else op.Gelu(x, _domain=MS)

    return emit


PATTERN = Pattern("Gelu", frozenset(_INNER), match)
