"""Scan written as Loop: a loop can keep sequences for its backward pass, which a scan cannot.

So it is with a branch in its body, of which another one may run in each step: what the others would
give has no size.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.control_flow_body import deep
from onnxtrain.gradients.control_flow_keep import (
    SEQUENCES_SINCE,
    held_as,
    holdable,
    take_over,
    taken,
)
from onnxtrain.gradients.engine import carries_gradient, depends_on, is_nested
from onnxtrain.gradients.known import need_rank
from onnxtrain.gradients.rules import Grad, Pair, attribute, find_rule
from onnxtrain.graph.builder import Ops
from onnxtrain.graph.edit import reads
from onnxtrain.types import DataType

_FAR = 2**62


def keeps_sequences(op: Ops, node: ir.Node, xs: Sequence[ir.Value]) -> bool:
    """Whether the gradient of a scan by some values may have to keep sequences of its body."""
    body = node.attributes["body"].as_graph()
    if op.opset < SEQUENCES_SINCE:
        return False
    reached = depends_on(body, [*xs, *(v for v in body.inputs if carries_gradient(v))])
    crossed = [inner for inner in body if not reached.isdisjoint(reads(inner))]
    return any(
        inner.op_type in ("If", "Loop")
        or any(is_nested(v) for v in (*inner.inputs, *inner.outputs))
        for inner in deep(crossed)
    )


class Converted:
    """A loop in the place of a scan; what is scanned becomes a sequence, of which it takes one.

    Args:
        op: Builder of the backward node.
        node: The scan; it is removed from its graph.

    Attributes:
        loop: The loop.
        split: By position among what is scanned: it, the same as a sequence holds it, and the node
            that makes the sequence.
    """

    def __init__(self, op: Ops, node: ir.Node) -> None:
        self.op, self.node = op, node
        self.body = node.attributes["body"].as_graph()
        self.count = len(self.body.inputs) - attribute(node, "num_scan_inputs", 1)
        given = [value for value in node.inputs[self.count :] if value is not None]
        before = Ops(op.graph, f"{op.prefix}scanned/")
        axes, back = (self._option(f"scan_input_{kind}", given) for kind in ("axes", "directions"))
        sequences: list[ir.Value] = []
        self.split: list[tuple[ir.Value, ir.Value, ir.Node]] = []
        for value, axis in zip(given, axes, strict=True):
            held = holdable(before, value)
            sequence = before.SplitToSequence(held, axis=axis, keepdims=0)
            sequence.type, sequence.shape = ir.SequenceType(ir.TensorType(held_as(value))), None
            sequences.append(sequence)
            self.split.append((value, held, before.nodes[-1]))
        trips = before.SequenceLength(sequences[0])
        last = before.Sub(trips, before.const(1)) if any(back) else None
        self._rewrite(sequences, back, last)
        states = node.inputs[: self.count]
        self.loop = ir.node(
            "Loop",
            [trips, before.const(True), *states],
            {"body": self.body},
            num_outputs=len(self.body.outputs) - 1,
            name=node.name,
        )
        self.loop.metadata_props.update(node.metadata_props)
        self._replace(before)

    def _option(self, name: str, values: Sequence[object]) -> list[int]:
        return list(attribute(self.node, name, None) or [0] * len(values))

    def _rewrite(
        self, sequences: Sequence[ir.Value], back: Sequence[int], last: ir.Value | None
    ) -> None:
        """Let the body take the number of the step, and the slices out of the sequences."""
        body, inner = self.body, Ops(self.op.graph, f"{self.op.prefix}slices/")
        step = ir.val(f"{inner.prefix}step", DataType.INT64, [])
        going = ir.val(f"{inner.prefix}going", DataType.BOOL, [])
        old = list(body.inputs)[self.count :]
        body.inputs[:] = [step, going, *list(body.inputs)[: self.count]]
        for slice_, sequence, backwards in zip(old, sequences, back, strict=True):
            one = taken(inner, sequence, inner.Sub(last, step) if backwards else step, slice_)
            body.outputs[:] = [one if value is slice_ else value for value in body.outputs]
            slice_.replace_all_uses_with(one)
        body.outputs.insert(0, inner.Identity(going))
        first = next(iter(body), None)
        if first is None:
            body.extend(inner.nodes)
        else:
            body.insert_before(first, inner.nodes)

    def _replace(self, before: Ops) -> None:
        """Put the loop into the graph; its rows are turned to where the scan has them."""
        node, graph = self.node, self.node.graph
        assert graph is not None
        after = Ops(self.op.graph, f"{self.op.prefix}turned/")
        results = list(self.body.outputs)[1:]
        values = list(self.loop.outputs)
        for index, (value, result) in enumerate(zip(values, results, strict=True)):
            value.name, value.type = f"{after.prefix}{index}", result.type
            if index >= self.count and result.shape is not None:
                value.shape = ir.Shape([None, *result.shape])
        rows = values[self.count :]
        turned = [self._turned(after, value, j) for j, value in enumerate(rows)]
        graph.insert_before(node, [*before.nodes, self.loop, *after.nodes])
        take_over(node, [*values[: self.count], *turned], results, f"{after.prefix}result")
        graph.remove(node, safe=True)

    def _turned(self, op: Ops, rows: ir.Value, j: int) -> ir.Value:
        """Rows of the loop along the axis and in the direction of the scan."""
        axis, backwards = self._walk(j, rows)
        rows = _reversed(op, rows) if backwards else rows
        rank = need_rank(rows, "Scan") if axis else 0
        return op.Transpose(rows, perm=_moved(rank, 0, axis)) if axis else rows

    def turned_back(self, dy: ir.Value, j: int) -> ir.Value:
        """The gradient of the rows of the loop, from that of an output of the scan."""
        axis, backwards = self._walk(j, dy)
        if axis:
            dy = self.op.Transpose(dy, perm=_moved(need_rank(dy, "Scan"), axis, 0))
        return _reversed(self.op, dy) if backwards else dy

    def _walk(self, j: int, rows: ir.Value) -> tuple[int, int]:
        count = len(self.body.outputs) - 1 - self.count
        axes, back = (
            self._option(f"scan_output_{kind}", range(count)) for kind in ("axes", "directions")
        )
        axis = axes[j] + need_rank(rows, "Scan") if axes[j] < 0 else axes[j]
        return axis, back[j]

    def pairs(self, dys: Sequence[Grad], wanted: Sequence[ir.Value]) -> list[Pair]:
        """Each wanted value with its gradient, from those of the scan's outputs."""
        rule = find_rule("", "Loop", self.op.opset)
        split = find_rule("", "SplitToSequence", self.op.opset)
        assert rule is not None and split is not None
        made = {item[2].outputs[0]: item for item in self.split if item[0] in wanted}
        incoming = [
            dy if dy is None or index < self.count else self.turned_back(dy, index - self.count)
            for index, dy in enumerate(dys)
        ]
        found: list[Pair] = []
        for value, grad in rule.pairs(self.op, self.loop, incoming, [*wanted, *made]):
            if value in made:
                value, held, node = made[value]
                ((_, grad),) = split.pairs(self.op, node, [grad], [held])
                grad = self.op.cast(grad, value)
            found.append((value, grad))
        return found


def _reversed(op: Ops, rows: ir.Value) -> ir.Value:
    """The last row first."""
    turned: ir.Value = op.Slice(rows, op.ints([-1]), op.ints([-_FAR]), op.ints([0]), op.ints([-1]))
    return turned


def _moved(rank: int, old: int, new: int) -> list[int]:
    """The permutation that moves an axis."""
    others = [axis for axis in range(rank) if axis != old]
    return [*others[:new], old, *others[new:]]
