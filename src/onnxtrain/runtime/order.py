"""The order of steps: the graph's own, with mutations after the last read of the old value."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping

import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.kernels.registry import Kernel

Pair = tuple[ir.Node, Kernel]


def scheduled(pairs: list[Pair], graph: ir.Graph, state: Collection[str]) -> list[Pair]:
    """Live nodes in an order that keeps data flow and puts a mutation after every other read.

    Several nodes that update one tensor of the state do so in the order of the graph.

    Raises:
        GraphError: if some node needs both the old and the new value of a mutated tensor in a
            way that no order can give.
    """
    pairs, inputs = _live(pairs, graph)
    place = {node: index for index, (node, _) in enumerate(pairs)}
    kernels = dict(pairs)
    after: list[set[int]] = []
    for (node, kernel), values in zip(pairs, inputs, strict=True):
        producers = [value.producer() for value in values]
        earlier = {place[producer] for producer in producers if producer in place}
        if kernel.mutates or kernel.updates:
            for value in _overwritten(node, kernel, state):
                for reader in _readers(value, node, kernels):
                    again = value in _updated(reader, kernels[reader], state)
                    if not again or place[reader] < place[node]:
                        earlier.add(place[reader])
        after.append(earlier)
    if all(max(earlier, default=-1) < index for index, earlier in enumerate(after)):
        return pairs
    return [pairs[index] for index in _sorted(after, pairs)]


def _live(pairs: list[Pair], graph: ir.Graph) -> tuple[list[Pair], list[list[ir.Value]]]:
    """Nodes whose results reach an output, or that change something, and what each reads."""
    needed = set(graph.outputs)
    kept, inputs = [], []
    for node, kernel in reversed(pairs):
        changes = kernel.mutates or kernel.updates or kernel.special
        if changes or not needed.isdisjoint(node.outputs):
            read = _all_inputs(node)
            kept.append((node, kernel))
            inputs.append(read)
            needed.update(read)
    return kept[::-1], inputs[::-1]


def _all_inputs(node: ir.Node) -> list[ir.Value]:
    """Inputs of a node and outer values that its subgraphs read."""
    found = [value for value in node.inputs if value is not None]
    for attribute in node.attributes.data.values():
        if attribute.type == ir.AttributeType.GRAPH:
            graph = attribute.as_graph()
            for inner in graph.all_nodes():
                found += [value for value in inner.inputs if value is not None]
            found += list(graph.outputs)
    return found


def _overwritten(node: ir.Node, kernel: Kernel, state: Collection[str]) -> list[ir.Value]:
    mutated = [
        value
        for index, value in enumerate(node.inputs)
        if value is not None and kernel.input_name(index) in kernel.mutates
    ]
    return mutated + _updated(node, kernel, state)


def _updated(node: ir.Node, kernel: Kernel, state: Collection[str]) -> list[ir.Value]:
    """Tensors of the state that a node writes a new value into."""
    return [
        value
        for index, value in enumerate(node.inputs)
        if value is not None and value.name in state and kernel.input_name(index) in kernel.updates
    ]


def _readers(value: ir.Value, writer: ir.Node, kernels: Mapping[ir.Node, Kernel]) -> set[ir.Node]:
    """Nodes beside the writer that read a value, or something that may be a view of it."""
    found: set[ir.Node] = set()
    seen: set[tuple[ir.Node, int]] = set()
    waiting = [value]
    while waiting:
        for node, index in waiting.pop().uses():
            if node is writer or node not in kernels:
                continue
            name, views = kernels[node].input_name(index), kernels[node].view
            if name in views and (node, index) not in seen:
                seen.add((node, index))
                which = views[name]
                waiting += [v for i, v in enumerate(node.outputs) if which is None or i in which]
            found.add(node)
    return found


def _sorted(after: list[set[int]], pairs: list[Pair]) -> list[int]:
    """Topological order that stays as close to the graph's own as it can."""
    followers: list[list[int]] = [[] for _ in after]
    for index, earlier in enumerate(after):
        for other in earlier:
            followers[other].append(index)
    waiting = [len(earlier) for earlier in after]
    ready = [index for index, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for other in followers[index]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, other)
    if len(order) < len(pairs):
        stuck = [pairs[i][0].name or "?" for i, count in enumerate(waiting) if count]
        raise GraphError(
            "no order keeps every read of a tensor before the node that overwrites it\n"
            f"  nodes {', '.join(repr(name) for name in stuck[:8])}"
        )
    return order
