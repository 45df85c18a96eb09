"""Gradients of zero that stay zero where a branch that was not selected has no finite slope.

``Where(x > 0, Log(x), x)`` does not depend on the logarithm where x ≤ 0, so that a gradient of
exactly 0 arrives there; times a slope that is infinite or not a number it would become NaN. Only
operators that stand between such a slope and an operator that selects are guarded: no other
gradient graph has a node more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnxtrain.gradients.known import constant_of
from onnxtrain.gradients.positive import Signs
from onnxtrain.gradients.rules import Pair
from onnxtrain.graph.builder import Ops
from onnxtrain.types import FLOATS, ML, ONNX

_SELECTING = frozenset({"Clip", "Imputer", "Max", "Min", "QuantizeLinear", "Relu", "Where"})
"""Give a gradient of exactly 0 to what they do not take."""
_STEEP = frozenset(
    {"Acos", "Acosh", "Asin", "Atanh", "Cosh", "Div", "Exp", "Log", "Mod", "Pow", "Reciprocal"}
    | {"Sinh", "Sqrt", "Tan"}
)
"""Elementwise operators whose value or slope may be infinite or not a number."""
_CURVED = _STEEP | frozenset(
    {"Abs", "Asinh", "Atan", "Celu", "Cos", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish"}
    | {"LeakyRelu", "Max", "Min", "Mish", "Mul", "PRelu", "Selu", "Sigmoid", "Sin", "Softplus"}
    | {"Softsign", "Swish", "Tanh", "ThresholdedRelu"}
)
"""Elementwise operators whose gradient reads values that may be so."""
_CARRYING = (
    _SELECTING
    | _CURVED
    | frozenset(
        {"Add", "Cast", "Concat", "DequantizeLinear", "Expand", "Flatten", "Gather", "Identity"}
        | {"Mean", "Neg", "ReduceMean", "ReduceSum", "Reshape", "Slice", "Split", "Squeeze", "Sub"}
        | {"Sum", "Transpose", "Unsqueeze"}
    )
)
"""Hand a gradient of 0 on as 0, element by element."""
_ASKING = frozenset({"Imputer", "IsInf", "IsNaN"})
_SINCE = 9
"""The first opset that can ask for a NaN and select."""


def fragile(graph: ir.Graph, opset: int) -> frozenset[ir.Node]:
    """Nodes whose rule may make NaN of a gradient of 0."""
    if opset < _SINCE or not any(_is(node, _SELECTING) for node in graph):
        return frozenset()
    steep = _steep(graph)
    unsure = _not_finite(graph, steep)
    return frozenset(
        node
        for node in _before_selection(graph)
        if _is(node, _CURVED) and (node in steep or _reads(node, unsure))
    )


def _before_selection(graph: ir.Graph) -> Iterable[ir.Node]:
    """Nodes whose outputs an operator selects from, perhaps after others that keep zeros."""
    behind: set[ir.Value | None] = set()
    for node in reversed(graph):
        before = any(value in behind for value in node.outputs)
        if before:
            yield node
        if _is(node, _SELECTING) or (before and _is(node, _CARRYING)):
            behind.update(node.inputs)


def _not_finite(graph: ir.Graph, steep: set[ir.Node]) -> set[ir.Value]:
    """Values that may be infinite or not a number although all that is fed and trained is finite.

    So may be what the model itself asks for that.
    """
    unsure = {v for node in graph if _is(node, _ASKING) for v in node.inputs if v is not None}
    for node in graph:
        if node in steep or (_is(node, _CARRYING) and _reads(node, unsure)):
            unsure.update(value for value in node.outputs if value.dtype in FLOATS)
    return unsure


def _steep(graph: ir.Graph) -> set[ir.Node]:
    """Nodes whose value or slope may not be finite; what is known of their operands counts."""
    signs, found = Signs(), set()
    for node in graph:
        if _is(node, _STEEP) and not _is_smooth(node, signs):
            found.add(node)
        signs.tell(node)
    return found


def _is_smooth(node: ir.Node, signs: Signs) -> bool:
    if node.op_type in {"Log", "Reciprocal", "Sqrt"}:
        return signs.is_positive(node.inputs[0])
    known = constant_of(node.inputs[1]) if node.op_type in {"Div", "Mod", "Pow"} else None
    if node.op_type == "Pow":
        whole = known is not None and ((known >= 1) & (known == known.round())).all()
        return bool(whole) or (known is not None and signs.is_positive(node.inputs[0]))
    nonzero = known is not None and (known != 0).all()
    return bool(nonzero) or (node.op_type == "Div" and signs.is_positive(node.inputs[1]))


def _is(node: ir.Node, names: frozenset[str]) -> bool:
    return node.domain in (ONNX, ML) and node.op_type in names


def _reads(node: ir.Node, values: set[ir.Value]) -> bool:
    return any(value in values for value in node.inputs)


class Guarded(Ops):
    """Emits the gradient of an elementwise node with 0 for NaN where the incoming one is 0.

    Args:
        graph: As for ``Ops``.
        prefix: As for ``Ops``.
        dy: The incoming gradient.
    """

    def __init__(self, graph: ir.Graph, prefix: str, dy: ir.Value) -> None:
        super().__init__(graph, prefix)
        self._dy = dy
        self._kept: set[ir.Value] = {dy}

    def unbroadcast(self, grad: ir.Value, to: ir.Value) -> ir.Value:
        """Guarded before it is summed, where an element would spoil the sum."""
        summed = super().unbroadcast(self._keep(grad), to)
        self._kept.add(summed)
        return summed

    def kept(self, pairs: Sequence[Pair]) -> list[Pair]:
        """The gradients of a rule; one that was not summed has the shape of the incoming one."""
        return [(value, grad if grad in self._kept else self._keep(grad)) for value, grad in pairs]

    def _keep(self, grad: ir.Value) -> ir.Value:
        nothing = self.equal(self._dy, self.scalar(0, self._dy))
        lost = self.And(nothing, self.IsNaN(grad))
        kept = self.Where(lost, self.scalar(0, grad), grad)
        self._kept.add(kept)
        return kept
