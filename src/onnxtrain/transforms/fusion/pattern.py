"""Patterns: what a place in a graph is recognised as, and how it is rewritten."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.graph.edit import take_over
from onnxtrain.transforms.fusion.report import Fused, Missed, Report
from onnxtrain.types import ONNX


class Refusal(Exception):
    """Nodes that look like a pattern but are none; the text says why."""


@dataclasses.dataclass(frozen=True)
class Match:
    """Nodes to replace.

    Attributes:
        nodes: The nodes that go away; what they make is read by themselves only, but for the
            first output of the last of them, which is replaced.
        emit: Makes the new nodes and gives what stands for that output.
    """

    nodes: Sequence[ir.Node]
    emit: Callable[[Ops], ir.Value]

    @property
    def output(self) -> ir.Value:
        """What is replaced."""
        return self.nodes[-1].outputs[0]


@dataclasses.dataclass(frozen=True)
class Pattern:
    """One kind of thing to recognise.

    Attributes:
        name: What reports call it.
        anchors: Operators at which it is looked for.
        match: What is there: a match, None if it is nothing alike, or a refusal.
        domain: Whose operators these are.
    """

    name: str
    anchors: frozenset[str]
    match: Callable[[ir.Node], Match | None]
    domain: str = ONNX


def apply(graph: ir.Graph, pattern: Pattern, report: Report) -> None:
    """Replace every match of a pattern, in place."""
    for node in list(graph):
        if node.graph is not graph or node.domain != pattern.domain:
            continue
        if node.op_type not in pattern.anchors:
            continue
        try:
            found = pattern.match(node)
            if found is not None:
                _refuse_others(graph, found)
                _refuse_readers(found)
        except Refusal as refusal:
            report.missed.append(Missed(pattern.name, str(node.name), str(refusal)))
            continue
        if found is not None:
            replaced = tuple(str(one.name) for one in found.nodes)
            report.fused.append(Fused(pattern.name, _replace(graph, found), replaced))


def _refuse_others(graph: ir.Graph, found: Match) -> None:
    """Some of the nodes are in the body of another node, or outside of this one."""
    for node in found.nodes:
        if node.graph is not graph:
            raise Refusal(f"node '{node.name}' ({node.op_type}) is in another graph")


def _refuse_readers(found: Match) -> None:
    """Somebody who reads what would no longer be computed."""
    inside = set(found.nodes)
    for value in (value for node in found.nodes for value in node.outputs):
        if value is found.output:
            continue
        if value.is_graph_output():
            raise Refusal(f"'{value.name}' is an output of the model")
        readers = [node for node, _ in value.uses() if node not in inside]
        if readers:
            raise Refusal(
                f"'{value.name}' is read by node '{readers[0].name}' ({readers[0].op_type}) too"
            )


def _replace(graph: ir.Graph, found: Match) -> str:
    """Put new nodes where the last of a match stands; gives the name of the last of them."""
    last, old = found.nodes[-1], found.output
    op = Ops(graph, f"{last.name}/")
    new = found.emit(op)
    graph.insert_before(last, op.nodes)
    made = new.producer()
    assert made is not None
    take_over(old, new)
    graph.remove(found.nodes, safe=True)
    return str(made.name)
