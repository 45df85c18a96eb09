"""Nodes of the forward pass once more, in front of those that read what they give."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnxtrain.graph.edit import fresh_name, value_names
from onnxtrain.graph.phase import Phase, mark
from onnxtrain.transforms.recompute.forward import Forward
from onnxtrain.transforms.recompute.table import sources, twin_of

SUFFIX = "_again"


def compute_again(forward: Forward, kept: Collection[ir.Value]) -> int:
    """Let nodes of the backward pass read values that are computed again.

    Each is computed right before it is needed first, once for all that read it. Gives the number of
    nodes that are computed twice.
    """
    twins = _Twins(forward, kept)
    for node in forward.later:
        for place, value in enumerate(node.inputs):
            if value is not None and value in forward.made:
                node.replace_input_with(place, twins.of(value, node))
    return twins.count


class _Twins:
    """Values that are computed again, by the values that they stand for."""

    def __init__(self, forward: Forward, kept: Collection[ir.Value]) -> None:
        self._forward = forward
        self._twins = {value: value for value in kept}
        self._taken = value_names(forward.graph)
        self.count = 0

    def of(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        """A value's twin; what it is computed from is put in front of its reader."""
        waiting = [value]
        while waiting:
            one = waiting[-1]
            if one not in self._forward.made:
                self._twins[one] = one
            if one in self._twins:
                waiting.pop()
                continue
            missing = [given for given in sources(one) if given not in self._twins]
            if missing:
                waiting += missing
            else:
                self._repeat(one, reader)
        return self._twins[value]

    def _repeat(self, value: ir.Value, reader: ir.Node) -> None:
        node, (domain, op_type, inputs, attributes) = value.producer(), twin_of(value)
        assert node is not None, "inputs have themselves as twins"
        same = inputs == [*node.inputs]
        twin = ir.Node(
            domain,
            op_type,
            [None if given is None else self._twins[given] for given in inputs],
            attributes,
            num_outputs=len(node.outputs) if op_type == node.op_type else 1,
            version=node.version if same else None,
            name=f"{node.name}{SUFFIX}",
        )
        mark(twin, Phase.BACKWARD)
        graph = self._forward.graph
        graph.opset_imports.setdefault(domain, 1)
        graph.insert_before(reader, twin)
        for old, new in zip(node.outputs, twin.outputs, strict=False):
            new.name = ""
            if old.name and (same or old is value):
                new.type, new.shape = old.type, old.shape
                new.name = fresh_name(f"{old.name}{SUFFIX}", self._taken)
                self._twins.setdefault(old, new)
        self.count += 1
