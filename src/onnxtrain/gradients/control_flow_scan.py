"""The gradient of Scan: a Scan over the same slices, from the last one to the first."""

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
from onnxtrain.gradients.control_flow_convert import Converted, keeps_sequences
from onnxtrain.gradients.control_flow_keep import cannot_keep, name_outputs, scan_output
from onnxtrain.gradients.control_flow_reach import Reach
from onnxtrain.gradients.engine import carries_gradient
from onnxtrain.gradients.rules import Grad, Pair, attribute, gradient
from onnxtrain.gradients.sequence import zeros_like
from onnxtrain.graph.builder import Ops


@gradient("Scan", since=9, captures=True)
def scan(op: Ops, node: ir.Node, dys: Sequence[Grad], wanted: Sequence[ir.Value]) -> list[Pair]:
    """Gradients of the states it starts with, of the scanned values and of what is captured."""
    if keeps_sequences(op, node, wanted):
        return Converted(op, node).pairs(dys, wanted)
    return Scanned(op, node, dys, wanted).pairs()


class Scanned:
    """The work of one application of the rule.

    Attributes:
        initial: States that the scan starts with.
        given: Values that are scanned.
        states: What the body is given of the states.
        slices: What it is given of the scanned values.
        results: The states that it hands on.
        rows: What it gives in each step besides.
    """

    first = 0
    """How many inputs the node has before the states, and how many axes before the scanned one."""

    def __init__(
        self, op: Ops, node: ir.Node, dys: Sequence[Grad], wanted: Sequence[ir.Value]
    ) -> None:
        self.op, self.node, self.wanted = op, node, wanted
        self.body = node.attributes["body"].as_graph()
        inputs, scanned = list(self.body.inputs), attribute(node, "num_scan_inputs", 1)
        count = len(inputs) - scanned
        self.states, self.slices = inputs[:count], inputs[count:]
        taken = [value for value in node.inputs[self.first :] if value is not None]
        self.initial, self.given = taken[:count], taken[count:]
        outputs = list(self.body.outputs)
        self.results, self.rows = outputs[:count], outputs[count:]
        filled = [*dys, *[None] * (len(outputs) - len(dys))]
        self.dys, self.row_dys = filled[:count], filled[count:]
        for value, whole in zip(inputs, taken, strict=True):
            value.type = value.type or whole.type

    def pairs(self) -> list[Pair]:
        """Each wanted value with its gradient."""
        op = self.op
        scanned = [
            j
            for j, value in enumerate(self.given)
            if value in self.wanted and carries_gradient(value)
        ]
        xs = [*self.wanted, *(self.slices[j] for j in scanned)]
        reach = Reach(self.body, self.states, self.results, xs)
        ends = [row for row, dy in zip(self.rows, self.row_dys, strict=True) if dy is not None]
        used = reach.used(
            [k for k, dy in enumerate(self.dys) if dy is not None], ends, self.initial
        )
        seeds = {k: seed_for(self.results[k], f"{op.prefix}state{k}") for k in used}
        row_seeds = {
            j: seed_for(row, f"{op.prefix}row{j}")
            for j, row in enumerate(self.rows)
            if self.row_dys[j] is not None
        }
        every = [(self.results[k], seed) for k, seed in seeds.items()]
        every += [(self.rows[j], seed) for j, seed in row_seeds.items()]
        fill = [self.states[k] for k in used]
        half = differentiated(op, self.body, [*fill, *xs], every, fill=fill)
        found = [x for x in self.wanted if x in half.grads]
        scanned = [j for j in scanned if self.slices[j] in half.grads]
        if not (used or found or scanned):
            return []
        return self._back(half, seeds, row_seeds, found, scanned)

    def _back(
        self,
        half: Half,
        seeds: dict[int, ir.Value],
        row_seeds: dict[int, ir.Value],
        found: list[ir.Value],
        scanned: list[int],
    ) -> list[Pair]:
        """Emit the backward scan: carried gradients and sums, then what is scanned."""
        op = self.op
        name_outputs(op, self.node, list(self.body.outputs))
        walks = self._walks(half, row_seeds)
        starts = []
        for k in seeds:
            dy = self.dys[k]
            starts.append(zeros_like(op, self.node.outputs[k]) if dy is None else dy)
        starts += [self._zero_sum(x) for x in found]
        body = self._body(half, seeds, found, scanned, [slice_ for _, slice_, _, _ in walks])
        options = {
            "body": body,
            "num_scan_inputs": len(walks),
            **self._options([w[2] for w in walks], [w[3] for w in walks], scanned),
        }
        given = [self.given[j] for j in scanned]
        like = [*(self.initial[k] for k in seeds), *starts[len(seeds) :], *given]
        inputs = [*self.node.inputs[: self.first], *starts, *(w[0] for w in walks)]
        grads = control_node(op, "Scan", inputs, options, like)
        sums = [self._summed(g, x) for g, x in zip(grads[len(seeds) :], found, strict=False)]
        slices = zip(scanned, grads[len(seeds) + len(found) :], strict=True)
        return [
            *zip([self.initial[k] for k in seeds], grads, strict=False),
            *zip(found, sums, strict=True),
            *((self.given[j], self._in_order(grad, j)) for j, grad in slices),
        ]

    def _walks(
        self, half: Half, row_seeds: dict[int, ir.Value]
    ) -> list[tuple[ir.Value, ir.Value, int, int]]:
        """What the backward scan walks along: a value, its slice, the axis and the direction."""
        walks, replacements = [], {}
        needed = list(half.needed)
        if not needed and not row_seeds:
            needed = [self.slices[0]]
        for index, value in enumerate(needed):
            slice_ = seed_for(value, f"{self.op.prefix}kept{index}")
            replacements[value] = slice_
            whole, axis, direction = self._whole(value)
            walks.append((whole, slice_, axis, 1 - direction))
        half.rewire(replacements)
        for j, seed in row_seeds.items():
            dy = self.row_dys[j]
            assert dy is not None
            axis, direction = self._output_walk(j)
            walks.append((dy, seed, axis, 1 - direction))
        return walks

    def _whole(self, value: ir.Value) -> tuple[ir.Value, int, int]:
        """Where a value of the body is kept for all steps, its axis and its direction."""
        if value in self.slices:
            j = self.slices.index(value)
            return self.given[j], *self._input_walk(j)
        if value in self.rows:
            j = self.rows.index(value)
            return self.node.outputs[len(self.states) + j], *self._output_walk(j)
        return self._kept(value), 0, 0

    def _kept(self, value: ir.Value) -> ir.Value:
        """A value of every step of the forward scan, as a new output."""
        if not isinstance(value.type, ir.TensorType):
            raise cannot_keep(self.node, value, "step")
        for name in ("scan_output_axes", "scan_output_directions"):
            if self.node.attributes.get(name) is not None:
                values = [*self.node.attributes[name].as_ints(), 0]
                self.node.attributes.add(ir.AttrInt64s(name, values))
        return scan_output(self.op, self.node, self.body, value, axes=1 + self.first)

    def _body(
        self,
        half: Half,
        seeds: dict[int, ir.Value],
        found: list[ir.Value],
        scanned: list[int],
        slices: list[ir.Value],
    ) -> ir.Graph:
        op = self.op
        end = Ops(op.graph, f"{op.prefix}grads/")
        sums = [seed_for(x, f"{op.prefix}sum{index}") for index, x in enumerate(found)]
        results: list[ir.Value] = []

        def give(x: ir.Value) -> None:
            grad = half.grads[x]
            fresh = half.nodes if grad not in results else []
            results.append(produced(end, grad, x, fresh))

        for k in seeds:
            give(self.states[k])
        results += [
            accumulated(end, total, half.grads[x]) for total, x in zip(sums, found, strict=True)
        ]
        for j in scanned:
            give(self.slices[j])
        inputs = [*seeds.values(), *sums, *slices]
        return body_of(f"{op.prefix}body", inputs, results, [*half.nodes, *end.nodes])

    def _input_walk(self, j: int) -> tuple[int, int]:
        """Axis and direction of a scanned value."""
        axes = attribute(self.node, "scan_input_axes", ())
        directions = attribute(self.node, "scan_input_directions", ())
        return (axes[j] if axes else 0), (directions[j] if directions else 0)

    def _output_walk(self, j: int) -> tuple[int, int]:
        """Axis and direction of rows."""
        axes = attribute(self.node, "scan_output_axes", ())
        directions = attribute(self.node, "scan_output_directions", ())
        return (axes[j] if axes else 0), (directions[j] if directions else 0)

    def _options(
        self, axes: list[int], directions: list[int], scanned: list[int]
    ) -> dict[str, object]:
        """Attributes of the backward scan."""
        back = [self._input_walk(j) for j in scanned]
        options: dict[str, object] = {
            "scan_input_axes": axes,
            "scan_input_directions": directions,
        }
        if back:
            options["scan_output_axes"] = [axis for axis, _ in back]
            options["scan_output_directions"] = [1 - direction for _, direction in back]
        return options

    def _zero_sum(self, x: ir.Value) -> ir.Value:
        """What the sum of the gradients of a captured value starts with."""
        return zeros_like(self.op, x)

    def _summed(self, total: ir.Value, x: ir.Value) -> ir.Value:
        """The gradient of a captured value, from its sum over the steps."""
        return total

    def _in_order(self, grad: ir.Value, j: int) -> ir.Value:
        """The gradient of a scanned value, from the rows that the backward scan gave."""
        return grad


@gradient("Scan", until=8, captures=True)
def scan_8(op: Ops, node: ir.Node, dys: Sequence[Grad], wanted: Sequence[ir.Value]) -> list[Pair]:
    """The first Scan scans each element of a batch up to a length of its own."""
    return _Batched(op, node, dys, wanted).pairs()


class _Batched(Scanned):
    """Scan of opset 8: the first axis is a batch, the second is scanned."""

    first = 1

    def _input_walk(self, j: int) -> tuple[int, int]:
        directions = attribute(self.node, "directions", ())
        return 0, (directions[j] if directions else 0)

    def _output_walk(self, j: int) -> tuple[int, int]:
        return 0, 0

    def _options(
        self, axes: list[int], directions: list[int], scanned: list[int]
    ) -> dict[str, object]:
        return {"directions": directions}

    def _zero_sum(self, x: ir.Value) -> ir.Value:
        """Zeros for each element of the batch."""
        op = self.op
        batch = op.Slice(op.Shape(self.given[0]), starts=[0], ends=[1], axes=[0])
        zeros = op.Expand(op.scalar(0, x), op.Concat(batch, op.shape(x), axis=0))
        if x.shape is not None:
            zeros.shape = ir.Shape([None, *x.shape])
        return zeros

    def _summed(self, total: ir.Value, x: ir.Value) -> ir.Value:
        return self.op.reduce_sum(total, [0], keepdims=False)

    def _in_order(self, grad: ir.Value, j: int) -> ir.Value:
        """Rows come in the order of the steps; those of a forward walk are turned round."""
        if self._input_walk(j)[1]:
            return grad
        op = self.op
        inner = Ops(op.graph, f"{op.prefix}turned{j}/")
        slice_ = seed_for(self.slices[j], f"{inner.prefix}slice")
        body = body_of(f"{inner.prefix}body", [slice_], [inner.Identity(slice_)], inner.nodes)
        options = {"body": body, "num_scan_inputs": 1, "directions": [1]}
        turned = Ops(op.graph, inner.prefix)
        (result,) = control_node(turned, "Scan", [self.node.inputs[0], grad], options, [grad])
        op.nodes += turned.nodes
        return result
