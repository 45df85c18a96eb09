"""The gradient of Loop: a Loop over the same iterations, from the last one to the first."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.control_flow_body import (
    Half,
    accumulated,
    body_of,
    control_node,
    differentiated,
    produced,
    seed_for,
)
from onnxtrain.gradients.control_flow_keep import SEQUENCES_SINCE, Rows, Stacks
from onnxtrain.gradients.control_flow_reach import Reach
from onnxtrain.gradients.rules import Grad, Pair, gradient
from onnxtrain.gradients.sequence import zeros_like
from onnxtrain.graph.builder import Ops
from onnxtrain.types import DataType


@gradient("Loop", captures=True)
def loop(op: Ops, node: ir.Node, dys: Sequence[Grad], wanted: Sequence[ir.Value]) -> list[Pair]:
    """Gradients of the values that it starts with, and of what its body captures."""
    return _Loop(op, node, dys, wanted).pairs()


class _Loop:
    """The work of one application of the rule.

    Attributes:
        carried: What the body is given, from the third input on.
        results: What it hands on to the next iteration.
        rows: What it gives in each iteration besides.
    """

    def __init__(
        self, op: Ops, node: ir.Node, dys: Sequence[Grad], wanted: Sequence[ir.Value]
    ) -> None:
        self.op, self.node, self.wanted = op, node, wanted
        self.body = node.attributes["body"].as_graph()
        self.carried = list(self.body.inputs)[2:]
        count = len(self.carried)
        self.results = list(self.body.outputs)[1 : 1 + count]
        self.rows = list(self.body.outputs)[1 + count :]
        self.initial = [*node.inputs, None, None][2 : 2 + count]
        for given, value in zip(self.initial, self.carried, strict=True):
            value.type = value.type if given is None or value.type else given.type
        filled = [*dys, *[None] * (count + len(self.rows) - len(dys))]
        self.dys, self.row_dys = filled[:count], filled[count:]

    def pairs(self) -> list[Pair]:
        reach = Reach(self.body, self.carried, self.results, self.wanted)
        ends = [row for row, dy in zip(self.rows, self.row_dys, strict=True) if dy is not None]
        used = reach.used(
            [k for k, dy in enumerate(self.dys) if dy is not None], ends, self.initial
        )
        seeds = {k: seed_for(self.results[k], f"{self.op.prefix}carried{k}") for k in used}
        incoming = [
            (row, seed_for(row, f"{self.op.prefix}row{index}"), dy)
            for index, (row, dy) in enumerate(zip(self.rows, self.row_dys, strict=True))
            if dy is not None
        ]
        xs = [self.carried[k] for k in used]
        every = [(self.results[k], seed) for k, seed in seeds.items()]
        every += [(row, seed) for row, seed, _ in incoming]
        half = differentiated(self.op, self.body, [*xs, *self.wanted], every, fill=xs)
        found = [x for x in self.wanted if x in half.grads]
        if not used and not found:
            return []
        given = {*self.body.inputs[:2]}
        needed = [value for value in half.needed if value not in given]
        keep = Stacks if self.op.opset >= SEQUENCES_SINCE else Rows
        kept = keep(self.op, self.node, needed, [(seed, dy) for _, seed, dy in incoming])
        return self._back(kept, half, seeds, found)

    def _back(
        self, kept: Stacks | Rows, half: Half, seeds: dict[int, ir.Value], found: list[ir.Value]
    ) -> list[Pair]:
        """Emit the backward loop; carried gradients come first, then sums, then what is kept."""
        op, outputs = self.op, kept.loop.outputs
        starts: list[ir.Value] = []
        for k in seeds:
            dy = self.dys[k]
            starts.append(zeros_like(op, outputs[k]) if dy is None else dy)
        starts += [zeros_like(op, x) for x in found]
        last = op.Sub(kept.count, op.const(1))
        body = self._body(kept, half, seeds, found, last)
        like = [*(outputs[k] for k in seeds), *found, *kept.initial]
        inputs = [kept.count, None, *starts, *kept.initial]
        grads = control_node(op, "Loop", inputs, {"body": body}, like)
        for grad, k in zip(grads, seeds, strict=False):
            start = self.initial[k]
            grad.shape = None if start is None else start.shape
        starts = [value for k in seeds if (value := self.initial[k]) is not None]
        return list(zip([*starts, *found], grads, strict=False))

    def _body(
        self,
        kept: Stacks | Rows,
        half: Half,
        seeds: dict[int, ir.Value],
        found: list[ir.Value],
        last: ir.Value,
    ) -> ir.Graph:
        op = self.op
        first, end = (Ops(op.graph, f"{op.prefix}{part}/") for part in ("taken", "grads"))
        step = ir.val(f"{op.prefix}step", DataType.INT64, [])
        going = ir.val(f"{op.prefix}going", DataType.BOOL, [])
        iteration = first.Sub(last, step)
        values, left = kept.take(first, iteration)
        half.rewire({**values, self.body.inputs[0]: iteration, self.body.inputs[1]: op.const(True)})
        sums = [seed_for(x, f"{op.prefix}sum{index}") for index, x in enumerate(found)]
        results: list[ir.Value] = []
        for k in seeds:
            grad = half.grads[self.carried[k]]
            fresh = half.nodes if grad not in results else []
            results.append(produced(end, grad, self.carried[k], fresh))
        results += [
            accumulated(end, total, half.grads[x]) for total, x in zip(sums, found, strict=True)
        ]
        again = end.Identity(going)
        inputs = [step, going, *seeds.values(), *sums, *kept.parameters]
        nodes = [*first.nodes, *half.nodes, *end.nodes]
        return body_of(f"{op.prefix}body", inputs, [again, *results, *left], nodes)
