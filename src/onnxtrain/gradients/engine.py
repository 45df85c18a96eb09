"""The gradient engine: walks a graph backwards and asks the rules.

Each value collects the gradients that arrive over its uses, one per edge; when its producer is
reached all of them are there, and they are summed. Nodes that no gradient reaches are never
visited, so an operator without a rule only matters when it stands between an x and a y.

The body of a control flow node is differentiated by an engine of its own, whose nodes are then
moved into the body of the backward node; constants and names belong to the root graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxtrain.errors import GraphError, LossError, NoGradientError
from onnxtrain.gradients.known import UnknownRankError
from onnxtrain.gradients.rules import Pair, Rule, find_rule
from onnxtrain.gradients.selected import Guarded, fragile
from onnxtrain.gradients.sequence import sum_of
from onnxtrain.gradients.signals import all_of, is_signal
from onnxtrain.gradients.straight_through import behind
from onnxtrain.graph.bindings import opset_of
from onnxtrain.graph.builder import Ops
from onnxtrain.graph.edit import (
    blank_unused_outputs,
    collected_names,
    is_used,
    reads,
    taken_names,
    unique_name,
)
from onnxtrain.graph.lean import measure_early, share_equal
from onnxtrain.graph.phase import Phase, mark
from onnxtrain.graph.tidy import unshadow
from onnxtrain.types import FLOATS, op_name
from onnxtrain.unrunnable import why_unknown, why_unrunnable


class MissingRules(NoGradientError):
    """Operators of a body that have no rule; outside of it they are named with all others.

    Attributes:
        operators: Names of the nodes, by operator.
    """

    def __init__(self, operators: Mapping[str, Sequence[str]]) -> None:
        super().__init__(_explain(operators))
        self.operators = operators


def can_carry_gradient(value: ir.Value | None) -> bool:
    """Whether a value is a floating point tensor."""
    return value is not None and value.dtype in FLOATS and not is_nested(value)


def carries_gradient(value: ir.Value | None) -> bool:
    """Whether a value is floating point (a tensor, a sequence or an optional) or a signal."""
    return value is not None and (value.dtype in FLOATS or is_signal(value))


def is_nested(value: ir.Value | None) -> bool:
    """Whether a value is a sequence or an optional."""
    return value is not None and isinstance(value.type, (ir.SequenceType, ir.OptionalType))


def depends_on(graph: ir.Graph, xs: Sequence[ir.Value]) -> set[ir.Value]:
    """Values that may carry a gradient and are computed from some x, the xs included.

    A value of unknown type counts, so that an operator that nobody knows is an error instead of
    the silent end of a path.
    """
    reached = set(xs)
    for node in graph:
        if any(value in reached for value in (*reads(node), *behind(node))):
            reached |= {v for v in node.outputs if v.type is None or carries_gradient(v)}
    return reached


def seed_of(graph: ir.Graph, loss: ir.Value) -> ir.Value:
    """The gradient of the loss with respect to itself: ones, in its own type and shape.

    Raises:
        LossError: if the loss is neither a floating point scalar nor the signal of a Send.
    """
    if loss.type is None:
        node = loss.producer()
        operator = "" if node is None else f" of {node.domain or 'ai.onnx'}::{node.op_type}"
        raise LossError(
            f"the type of loss '{loss.name}'{operator} is not known\n"
            "  name an operator that ONNX has, or declare the type in graph.value_info"
        )
    if not can_carry_gradient(loss) and not is_signal(loss):
        raise LossError(f"loss '{loss.name}' is not a floating point tensor")
    dims = [] if loss.shape is None else list(loss.shape)
    if loss.shape is None or any(d != 1 for d in dims):
        shown = "unknown" if loss.shape is None else [str(d) for d in dims]
        raise LossError(
            f"loss '{loss.name}' must be a scalar, its shape is {shown}\n"
            "  reduce it with ReduceMean or ReduceSum without axes"
        )
    assert loss.dtype is not None
    tensor = ir.tensor(np.ones([1] * len(dims), loss.dtype.numpy()))
    name = unique_name(graph, f"{loss.name}_grad")
    seed = ir.Value(name=name, type=loss.type, shape=loss.shape, const_value=tensor)
    graph.register_initializer(seed)
    return seed


def backward(
    graph: ir.Graph, xs: Sequence[ir.Value], seeds: Mapping[ir.Value, ir.Value]
) -> dict[ir.Value, ir.Value]:
    """Append the backward nodes to a graph.

    Args:
        graph: A graph with types and shapes; it is changed.
        xs: Values whose gradients are wanted.
        seeds: The gradient that comes in from outside, for each y.

    Returns:
        The gradient of every x, named ``<x>_grad``; one that no y depends on is left out.

    Raises:
        NoGradientError: naming every operator in the way that has no rule.
    """
    with collected_names(graph):
        grads = _Backward(graph, xs, list(seeds.items())).run()
    unshadow(graph)
    return grads


def backward_in(
    body: ir.Graph, root: ir.Graph, xs: Sequence[ir.Value], seeds: Sequence[Pair]
) -> tuple[dict[ir.Value, ir.Value], list[ir.Node]]:
    """Append the backward nodes to the body of a node.

    Args:
        body: The body; it is changed.
        root: The graph of the whole model, which gets the constants.
        xs: Values of the body or from outside of it whose gradients are wanted.
        seeds: Values of the body with the gradients that come in; a value may come twice.

    Returns:
        The gradient of every x that some y depends on, and the nodes that compute them.

    Raises:
        MissingRules: naming every operator in the way that has no rule.
    """
    engine = _Backward(body, xs, seeds, root)
    return engine.run(), [node for node in body if node in engine.own]


@dataclasses.dataclass
class _Arrived:
    """The gradients that arrived at a value so far, and their sum once it was taken."""

    partial: list[ir.Value] = dataclasses.field(default_factory=list)
    total: ir.Value | None = None


class _Backward:
    """The work of one call of ``backward``."""

    def __init__(
        self,
        graph: ir.Graph,
        xs: Sequence[ir.Value],
        seeds: Sequence[Pair],
        root: ir.Graph | None = None,
    ) -> None:
        self.graph = graph
        self.root = graph if root is None else root
        self.xs = list(dict.fromkeys(xs))
        self.reached = depends_on(graph, self.xs)
        self.fragile = fragile(graph, Ops(self.root, "").opset)
        self.arrived: dict[ir.Value, _Arrived] = {}
        self.blocked: set[ir.Value] = set()
        self.missing: dict[str, list[str]] = {}
        self.taken = taken_names(self.root)
        self.fixed = {seed for _, seed in seeds}
        self.own: set[ir.Node | None] = set()
        self.constants = set(self.root.initializers)
        for y, seed in seeds:
            self._arrive(y, seed)

    def run(self) -> dict[ir.Value, ir.Value]:
        for node in reversed(list(self.graph)):
            self._visit(node)
        if self.missing:
            if self.graph is self.root:
                raise NoGradientError(_explain(self.missing))
            raise MissingRules(self.missing)
        take = self._named if self.graph is self.root else self._total
        grads = {x: take(x) for x in self.xs if x in self.arrived}
        self._clean(set(grads.values()))
        return grads

    def _visit(self, node: ir.Node) -> None:
        outputs = [v for v in node.outputs if v in self.arrived or v in self.blocked]
        read = dict.fromkeys([*reads(node), *behind(node)])
        wanted = [value for value in read if value in self.reached]
        if not outputs or not wanted or not any(v in self.reached for v in outputs):
            return
        rule = find_rule(node.domain, node.op_type, opset_of(node, self.root.opset_imports))
        if rule is None:
            self._miss({op_name(node.domain, node.op_type): [node.name or ""]}, wanted)
        elif any(v in self.blocked for v in outputs):
            self.blocked.update(wanted)
        else:
            self._apply(rule, node, wanted)

    def _apply(self, rule: Rule, node: ir.Node, wanted: Sequence[ir.Value]) -> None:
        dys = [self._total(v) if v in self.arrived else None for v in node.outputs]
        self._check_outputs(rule, node, dys)
        op = self._builder(node, dys[0])
        try:
            pairs = rule.pairs(op, node, dys, wanted)
        except MissingRules as missing:
            self._miss(missing.operators, wanted)
            return
        except UnknownRankError as unknown:
            raise GraphError(f"cannot differentiate node '{node.name}': {unknown}") from unknown
        if isinstance(op, Guarded):
            pairs = op.kept(pairs)
        self._append(op.nodes)
        for value, grad in pairs:
            if value in self.reached:
                self._check(node, value, grad)
                self._arrive(value, grad)

    def _builder(self, node: ir.Node, dy: ir.Value | None) -> Ops:
        """Where the rule of a node emits its gradient."""
        prefix = f"{node.name}_Grad/"
        if dy is None or node not in self.fragile:
            return Ops(self.root, prefix)
        return Guarded(self.root, prefix, dy)

    def _miss(self, operators: Mapping[str, Sequence[str]], wanted: Sequence[ir.Value]) -> None:
        """Remember operators without a rule; what stands before them is not blamed as well."""
        for name, nodes in operators.items():
            self.missing.setdefault(name, []).extend(nodes)
        self.blocked.update(wanted)

    def _check_outputs(self, rule: Rule, node: ir.Node, dys: Sequence[ir.Value | None]) -> None:
        """A rule that knows the first output only must not lose the gradient of another."""
        if rule.fn is None or rule.all_outputs:
            return
        if lost := [v.name for v, dy in zip(node.outputs[1:], dys[1:], strict=True) if dy]:
            raise NoGradientError(
                f"the gradient rule of {op_name(node.domain, node.op_type)} takes the gradient of "
                f"the first output only, but '{lost[0]}' of node '{node.name}' needs one too\n"
                f"  write a rule with @gradient('{node.op_type}', all_outputs=True)"
            )

    def _check(self, node: ir.Node, value: ir.Value, grad: ir.Value) -> None:
        """A gradient has the type of what it is the gradient of; a wrong rule is caught here."""
        if None not in (grad.dtype, value.dtype) and grad.dtype != value.dtype:
            raise GraphError(
                f"the gradient rule of {op_name(node.domain, node.op_type)} gave {grad.dtype} for "
                f"'{value.name}' of {value.dtype} at node '{node.name}'"
            )
        if grad.shape is None or not grad.shape.is_static():
            grad.shape = value.shape if value.shape is not None else grad.shape
            grad.type = value.type

    def _arrive(self, value: ir.Value, grad: ir.Value) -> None:
        self.arrived.setdefault(value, _Arrived()).partial.append(grad)

    def _append(self, nodes: Sequence[ir.Node]) -> None:
        for node in nodes:
            mark(node, Phase.BACKWARD)
            self.graph.append(node)
        self.own.update(nodes)

    def _total(self, value: ir.Value) -> ir.Value:
        """The whole gradient of a value: what arrived, summed."""
        arrived = self.arrived[value]
        if arrived.total is None:
            if len(arrived.partial) == 1:
                arrived.total = arrived.partial[0]
                self._rename(arrived.total, f"{value.name}_grad")
            else:
                arrived.total = self._sum(value, arrived.partial)
        return arrived.total

    def _sum(self, value: ir.Value, partial: Sequence[ir.Value]) -> ir.Value:
        for count, grad in enumerate(partial):
            self._rename(grad, f"{value.name}_grad_{count}")
        nested = is_nested(value)
        plain = self.graph is self.root and not nested
        op = Ops(self.root, "" if plain else f"{value.name}_Grad/")
        total: ir.Value
        if nested:
            total = sum_of(op, partial)
        elif is_signal(value):
            total = all_of(op, partial)
        else:
            total = op.Sum(*partial, _name=f"{op.prefix}AccumulateGrad_{value.name}_grad")
        total.type, total.shape = value.type, value.shape
        self._append(op.nodes)
        self._rename(total, f"{value.name}_grad")
        return total

    def _rename(self, grad: ir.Value, name: str) -> None:
        """Name a gradient after its tensor, unless it is the gradient of another one already."""
        if grad in self.fixed or grad.is_initializer() or grad.producer() not in self.own:
            return
        if self.graph is not self.root:
            return
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        self.fixed.add(grad)
        grad.name = name

    def _named(self, x: ir.Value) -> ir.Value:
        """The gradient of an x under the name ``<x>_grad``."""
        total = self._total(x)
        if total.name == f"{x.name}_grad":
            return total
        op = Ops(self.graph, f"{x.name}_Grad/")
        copied: ir.Value = op.Identity(total)
        copied.type, copied.shape = x.type, x.shape
        self._append(op.nodes)
        self._rename(copied, f"{x.name}_grad")
        return copied

    def _clean(self, keep: set[ir.Value]) -> None:
        """Remove backward nodes and constants that no wanted gradient needs."""
        share_equal(self.graph, self.own, keep)
        for node in reversed(list(self.graph)):
            if node not in self.own:
                continue
            if any(is_used(v) or v in keep for v in node.outputs):
                blank_unused_outputs(node, keep)
            else:
                self.graph.remove(node, safe=True)
        if self.graph is not self.root:
            return
        measure_early(self.graph, self.own)
        for name in set(self.graph.initializers) - self.constants:
            if not is_used(self.graph.initializers[name]):
                del self.graph.initializers[name]


def _explain(missing: Mapping[str, Sequence[str]]) -> str:
    lines = ["no gradient rule for " + ", ".join(sorted(missing))]
    for name, nodes in sorted(missing.items()):
        lines.append(f"  {name}: node {', '.join(map(repr, nodes[:4]))}")
    operators = [name.rpartition("::")[::2] for name in sorted(missing)]
    reasons = dict.fromkeys(filter(None, (why_unrunnable(*one) for one in operators)))
    if reasons:
        return "\n".join([*lines, *(f"  {reason}" for reason in reasons)])
    lines += [f"  {told}" for one in operators if (told := why_unknown(*one))]
    domain, first = operators[0]
    named = f"'{first}'" if domain == "ai.onnx" else f"'{first}', domain='{domain}'"
    lines.append(
        f"  write a rule with @gradient({named}), declare no_gradient({named}), "
        "or freeze the parameters behind it"
    )
    return "\n".join(lines)
