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

    Raises:
        GraphError: if some node needs both the old and the new value of a mutated tensor in a
            way that no order can give.
    """
    pairs = _live(pairs, graph)
    place = {node: index for index, (node, _) in enumerate(pairs)}
    kernels = dict(pairs)
    after: dict[int, set[int]] = {index: set() for index in range(len(pairs))}
    for index, (node, kernel) in enumerate(pairs):
        for value in _all_inputs(node):
            producer = value.producer()
            if producer in place:
                after[index].add(place[producer])
        for value in _overwritten(node, kernel, state):
            after[index] |= {place[reader] for reader in _readers(value, node, kernels)}
    return [pairs[index] for index in _sorted(after, pairs)]


def _live(pairs: list[Pair], graph: ir.Graph) -> list[Pair]:
    """Nodes whose results reach an output, or that change something."""
    needed = set(graph.outputs)
    kept = []
    for node, kernel in reversed(pairs):
        changes = bool(kernel.mutates or kernel.updates or kernel.special)
        if changes or any(value in needed for value in node.outputs):
            kept.append((node, kernel))
            needed.update(_all_inputs(node))
    return kept[::-1]


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
    found = []
    for index, value in enumerate(node.inputs):
        if value is None:
            continue
        name = kernel.input_name(index)
        if name in kernel.mutates or (name in kernel.updates and value.name in state):
            found.append(value)
    return found


def _readers(value: ir.Value, writer: ir.Node, kernels: Mapping[ir.Node, Kernel]) -> set[ir.Node]:
    """Nodes beside the writer that read a value, or something that may be a view of it."""
    found: set[ir.Node] = set()
    waiting = [value]
    while waiting:
        for node, index in waiting.pop().uses():
            if node is writer or node not in kernels:
                continue
            if kernels[node].input_name(index) in kernels[node].view and node not in found:
                waiting += node.outputs
            found.add(node)
    return found


def _sorted(after: dict[int, set[int]], pairs: list[Pair]) -> list[int]:
    """Topological order that stays as close to the graph's own as it can."""
    followers: dict[int, list[int]] = {index: [] for index in after}
    for index, earlier in after.items():
        for other in earlier:
            followers[other].append(index)
    waiting = {index: len(earlier) for index, earlier in after.items()}
    ready = [index for index, count in waiting.items() if not count]
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
        stuck = [pairs[i][0].name or "?" for i, count in waiting.items() if count]
        raise GraphError(
            "no order keeps every read of a tensor before the node that overwrites it\n"
            f"  nodes {', '.join(repr(name) for name in stuck[:8])}"
        )
    return order
