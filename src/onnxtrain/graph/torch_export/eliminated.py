"""Calls of which an exporter kept one of several, since they computed the same.

Two normalizations of the same data begin with the same numbers; so do two tokens that are put in
front of the same sequence. Torch's exporter first makes one tensor of their weights and then one
node of both, and goes on so with what reads only those. Training would tie them together. What
reads the last of such nodes still tells the call it read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from onnxtrain.graph.torch_export.copied import copied_node
from onnxtrain.graph.torch_export.lost import Lost, Other, own_tensor, tell_merged
from onnxtrain.graph.torch_export.traced import call_of, read_by_call, stem, told_by_copy
from onnxtrain.graph.torch_export.tracing import Trace, number

Use = tuple[ir.Node, int]
Values = dict[ir.Value, ir.Value]

_LARGEST = 256
"""How many nodes at most may be before one that an exporter kept for several."""


def restore_calls(model: ir.Model) -> bool:
    """Give what reads such a call one with parameters of its own, in place; whether there were any.

    A parameter that no tensor holds any more has to be there for each: else it was the same layer.
    """
    graph = model.graph
    lost = Lost(graph)
    if not lost.names:
        return False
    restoring = _Restoring(graph, lost)
    for name in list(restoring.trace.calls):
        restoring.part(name)
    left = {one: of for one, of in restoring.near.items() if one in lost.names}
    tell_merged(graph, {**left, **restoring.undecided})
    return bool(restoring.made)


class _Restoring:
    """What was restored so far.

    Attributes:
        trace: The calls of the graph.
        made: Tensors and results of parameters that are back, by those that they are like.
        undecided: Parameters that are back, and that further calls may have had instead of others.
        near: The same of those that were lost then.
    """

    def __init__(self, graph: ir.Graph, lost: Lost) -> None:
        self._graph, self._lost = graph, lost
        self.trace = Trace(graph)
        self.made: dict[Other, Values] = {}
        self.undecided: dict[str, str] = {}
        self.near: dict[str, str] = {}

    def part(self, name: str) -> None:
        """Give what reads a call for others one with parameters of its own, if that is certain."""
        result = _result(self.trace.calls[name])
        places = {} if result is None else _of_others(name, result, self.trace)
        if result is None or not places:
            return
        last = max(self.trace.order[node] for uses in places.values() for node, _ in uses)
        before = self._before(name, last)
        ways = self._ways(before)
        if len(ways) != len(places):
            held = self._held(before)
            self.near |= self._lost.like(held) or self._lost.of_layers_like(self._nearest(before))
            back = [(way, of) for way in ways if way in self.made for of in held]
            self.undecided |= {one: of for way, of in back if (one := way.name(of)) is not None}
            return
        for call, way in zip(sorted(places, key=number), ways, strict=True):
            new = self._copied(before, way, {name: call})
            for node, index in places[call]:
                node.replace_input_with(index, new[result])

    def _held(self, nodes: Iterable[ir.Node]) -> set[str]:
        """Parameters that nodes read."""
        return {one for node in nodes for v in node.inputs if (one := self._lost.held_by(v))}

    def _nearest(self, before: Mapping[ir.Node, int]) -> set[str]:
        """Parameters that the last of some nodes read that read any."""
        for depth in sorted(set(before.values())):
            if held := self._held(node for node, own in before.items() if own == depth):
                return held
        return set()

    def _before(self, name: str, last: int) -> dict[ir.Node, int]:
        """Nodes of a call, and those before it of which there may have been others, too.

        With each of them how many calls are between.
        """
        found = dict.fromkeys(self.trace.calls[name], 0)
        left = list(found)
        while left and len(found) < _LARGEST:
            node = left.pop(0)
            for value in node.inputs:
                first = None if value is None else value.producer()
                if first is None or first in found or first.graph is not self._graph:
                    continue
                call = call_of(first)
                if call is None or call == call_of(node) or self.trace.may_repeat(call, last):
                    found[first] = found[node] + (call != call_of(node))
                    left.append(first)
        return found

    def _ways(self, before: Mapping[ir.Node, int]) -> list[Other]:
        """The ways to parameters that others may have had, of those that are nearest and alike."""
        depths: dict[str, int] = {}
        alone: dict[str, bool] = {}
        for node, depth in before.items():
            held = {name for value in node.inputs if (name := self._lost.held_by(value))}
            for name in held:
                depths[name] = min(depth, depths.get(name, depth))
                alone[name] = len(held) == 1 and alone.get(name, True)
        ranks: dict[Other, tuple[int, int]] = {}
        for way in (*self._lost.others(depths), *self.made):
            names = [name for name in depths if way.name(name) is not None]
            if not names or not all(self._is_back(way, name) for name in names):
                continue
            if not self._reads_no_other(before, way):
                continue
            depth = min(depths[name] for name in names)
            if not way.is_of_one_module(names[0]):
                ranks[way] = (depth, -_LARGEST)
            elif alone[names[0]] and (depth == 0 or way.tells(names[0])):
                ranks[way] = (depth, -way.alike)
        return [way for way, rank in ranks.items() if rank == min(ranks.values())]

    def _reads_no_other(self, before: Iterable[ir.Node], way: Other) -> bool:
        """Whether what depends on such parameters reads none that stay the same.

        A layer that was called with several of their results is less likely than one result that
        was computed twice.
        """
        differ: set[ir.Value] = set()
        for node in sorted(before, key=self.trace.order.__getitem__):
            held = {v: name for v in node.inputs if v and (name := self._lost.held_by(v))}
            others = {v for v, name in held.items() if way.name(name) is not None}
            if others or not differ.isdisjoint(v for v in node.inputs if v is not None):
                differ.update(node.outputs)
                if len(others) < len(held):
                    return False
        return True

    def _is_back(self, way: Other, name: str) -> bool:
        """Whether the parameter like another one is lost, or was given back before."""
        held = [value for value in self.made.get(way, ()) if self._lost.held_by(value) == name]
        return bool(held) or way.name(name) in self._lost.names

    def _copied(self, before: Iterable[ir.Node], way: Other, calls: Mapping[str, str]) -> Values:
        """Copies of nodes with parameters of their own, of calls with other names."""
        new = self.made.setdefault(way, {})
        for node in sorted(before, key=self.trace.order.__getitem__):
            for value in node.inputs:
                held = self._lost.held_by(value)
                name = None if held is None else way.name(held)
                if value is None or held is None or name is None or value in new:
                    continue
                new[value] = own_tensor(self._graph, value, held, name)
                self._lost.take([name])
            reads = any(value in new for value in node.inputs if value is not None)
            if reads and node.outputs[0] not in new:
                inputs = [None if v is None else new.get(v, v) for v in node.inputs]
                told = told_by_copy(node, calls.get(call_of(node) or ""), way.name)
                copied = copied_node(self._graph, node, inputs, told)
                new |= zip(node.outputs, copied.outputs, strict=True)
        return new


def _result(nodes: Sequence[ir.Node]) -> ir.Value | None:
    """The one value of a call that others read."""
    inside = set(nodes)
    made = [v for node in nodes for v in node.outputs]
    read = [v for v in made if v.is_graph_output() or {n for n, _ in v.uses()} - inside]
    return read[0] if len(read) == 1 else None


def _of_others(name: str, result: ir.Value, trace: Trace) -> dict[str, list[Use]]:
    """Where the result of a call is read for that of another one, which no node is made of."""
    places: dict[ir.Node, list[int]] = {}
    for node, index in result.uses():
        places.setdefault(node, []).append(index)
    found: dict[str, list[Use]] = {}
    for node, indices in places.items():
        if call_of(node) == name or node not in trace.order:
            continue
        alike = [n for n in read_by_call(node) if stem(n) == stem(name)]
        read = [n for n in alike if n == name or n not in trace.known]
        if len(read) != len(indices):
            continue
        for index, one in zip(sorted(indices), read, strict=True):
            if one != name:
                found.setdefault(one, []).append((node, index))
    return found
