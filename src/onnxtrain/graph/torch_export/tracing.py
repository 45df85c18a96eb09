"""The calls that torch traced, as far as the nodes of a graph tell them.

Calls of a function are numbered in the order in which they were traced. A number that is nowhere is
that of a call that an exporter left out.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.torch_export.traced import call_of, held_names, stem


class Trace:
    """The calls of a graph.

    Attributes:
        calls: The nodes of each of them, in order.
        known: Names of all that is computed, or that was.
        order: Where nodes stand.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.order = {node: place for place, node in enumerate(graph)}
        self.calls: dict[str, list[ir.Node]] = {}
        for node in self.order:
            if name := call_of(node):
                self.calls.setdefault(name, []).append(node)
        self.known = {*self.calls, *held_names(graph)}
        self._numbers: dict[str, list[tuple[int, int]]] = {}
        for name, nodes in self.calls.items():
            places = self._numbers.setdefault(stem(name), [])
            places.append((number(name), self.order[nodes[0]]))

    def may_repeat(self, call: str, last: int) -> bool:
        """Whether another call of the same function may have been left out behind a call.

        Args:
            call: The name of the call.
            last: Where a node stands that came later.
        """
        begin = stem(call)
        missing = number(call) + 1
        while f"{begin}_{missing}" in self.known:
            missing += 1
        places = [place for count, place in self._numbers.get(begin, ()) if count < missing]
        return max(places, default=0) < last


def number(call: str) -> int:
    """The number of a call, 0 for the first one."""
    begin = stem(call)
    return 0 if begin == call else int(call[len(begin) + 1 :])
