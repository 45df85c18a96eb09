"""What a loop keeps for its backward pass: values of every iteration, the last one on top.

Where loops can carry sequences each value goes onto a stack (a sequence), so its shape may change
from one iteration to the next. Older loops keep rows of a tensor. Sequences of ONNX do not hold
bfloat16: such values lie in them as float, which loses nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnxtrain.errors import NoGradientError
from onnxtrain.gradients.control_flow_optional import put_together, taken_apart
from onnxtrain.gradients.rules import Pair
from onnxtrain.graph.builder import Ops
from onnxtrain.types import OWN, DataType, type_string

SEQUENCES_SINCE = 13
"""The first opset whose Loop carries sequences."""


@dataclasses.dataclass
class Stack:
    """A stack of one value of the forward body.

    Attributes:
        value: What is pushed in each iteration.
        carried: The stack that comes into an iteration.
        pushed: The stack that goes out of it.
        lengths: For a sequence, the stack of its lengths.
    """

    value: ir.Value
    carried: ir.Value
    pushed: ir.Value
    lengths: Stack | None = None


class Stacks:
    """Stacks of the values that a backward body needs, as carried values of the forward loop.

    Args:
        op: Builder of the backward node.
        node: The forward loop; another takes its place.
        needed: Values of its body.
        incoming: Stand-ins for the gradients of single rows, with the gradients of all rows.

    Attributes:
        loop: The forward loop that has the stacks.
        count: How many iterations it did.
        initial: What the backward loop starts with.
        parameters: The same as parameters of its body.
    """

    def __init__(
        self, op: Ops, node: ir.Node, needed: Iterable[ir.Value], incoming: Sequence[Pair]
    ) -> None:
        self.op, self.node, self.incoming = op, node, incoming
        self.body = node.attributes["body"].as_graph()
        self.inner = Ops(op.graph, f"{op.prefix}keep/")
        self.stacks: list[Stack] = []
        self.optionals: dict[ir.Value, tuple[Stack, Stack]] = {}
        for value in needed:
            if isinstance(value.type, ir.OptionalType):
                has, elements = taken_apart(self.inner, value)
                self.optionals[value] = self._add(has), self._add(elements)
            else:
                self._add(value)
        if not self.stacks:
            self._add(op.const(True))
        self.body.extend(self.inner.nodes)
        self.loop, finals = self._extended()
        self.count = op.SequenceLength(finals[0])
        rows = [op.SplitToSequence(holdable(op, dy), axis=0, keepdims=0) for _, dy in incoming]
        self.initial = [*finals, *rows]
        kept = [*(stack.value for stack in self.stacks), *(seed for seed, _ in incoming)]
        self.parameters = [
            stack_of(value, f"{self.inner.prefix}left{index}") for index, value in enumerate(kept)
        ]

    def _add(self, value: ir.Value) -> Stack:
        lengths, inner = None, self.inner
        if isinstance(value.type, ir.SequenceType):
            lengths = self._add(inner.SequenceLength(value))
        carried = stack_of(value, f"{inner.prefix}{len(self.stacks)}")
        if lengths is not None:
            pushed = inner.SequenceConcat(carried, value, _domain=OWN)
        else:
            pushed = inner.SequenceInsert(carried, holdable(inner, value))
        pushed.type, pushed.shape = carried.type, None
        made = Stack(value, carried, pushed, lengths)
        self.stacks.append(made)
        return made

    def _extended(self) -> tuple[ir.Node, list[ir.Value]]:
        """The forward loop with the stacks as its last carried values, in its place."""
        node, body, op = self.node, self.body, Ops(self.op.graph, f"{self.op.prefix}empty/")
        carried = len(body.inputs) - 2
        body.inputs.extend(stack.carried for stack in self.stacks)
        body.outputs[1 + carried : 1 + carried] = [stack.pushed for stack in self.stacks]
        empty = [op.SequenceEmpty(dtype=int(held_as(stack.value))) for stack in self.stacks]
        start = [*node.inputs, None, None][: max(2, len(node.inputs))]
        count = len(body.outputs) - 1
        new = ir.node("Loop", [*start, *empty], num_outputs=count, name=node.name)
        new.attributes.update(node.attributes)
        new.metadata_props.update(node.metadata_props)
        graph = node.graph
        assert graph is not None
        graph.insert_before(node, [*op.nodes, new])
        outputs = list(new.outputs)
        finals = outputs[carried : carried + len(self.stacks)]
        for stack, value in zip(self.stacks, finals, strict=True):
            value.name, value.type = f"{stack.carried.name}_all", stack.carried.type
        del outputs[carried : carried + len(self.stacks)]
        results = [y for y in body.outputs[1:] if y not in {s.pushed for s in self.stacks}]
        take_over(node, outputs, results, f"{self.op.prefix}result")
        graph.remove(node, safe=True)
        return new, finals

    def take(self, op: Ops, back: ir.Value) -> tuple[dict[ir.Value, ir.Value], list[ir.Value]]:
        """Pop every stack: what each value was in the iteration, and what is left."""
        found: dict[ir.Value, ir.Value] = {}
        left = []
        kept = [(stack.value, stack.lengths) for stack in self.stacks]
        for (value, lengths), stack in zip(kept, self.parameters, strict=False):
            count = None if lengths is None else found[lengths.value]
            found[value], rest = _popped(op, stack, value, count)
            left.append(rest)
        for value, (has, elements) in self.optionals.items():
            found[value] = put_together(op, found[has.value], found[elements.value], value)
        for (seed, _), stack in zip(self.incoming, self.parameters[len(kept) :], strict=True):
            found[seed], rest = _popped(op, stack, seed)
            left.append(rest)
        return found, left


class Rows:
    """Rows of the values that a backward body needs, as scan outputs of the forward loop.

    It has the arguments and attributes of ``Stacks``.
    """

    def __init__(
        self, op: Ops, node: ir.Node, needed: Iterable[ir.Value], incoming: Sequence[Pair]
    ) -> None:
        self.incoming, self.loop = incoming, node
        body = node.attributes["body"].as_graph()
        name_outputs(op, node, list(body.outputs)[1:])
        self.rows = {v: _row(op, node, body, v) for v in (*needed, body.inputs[0])}
        lengths = op.Shape(self.rows[body.inputs[0]])
        self.count = op.Gather(lengths, op.const(0), axis=0)
        self.initial: list[ir.Value] = []
        self.parameters: list[ir.Value] = []

    def take(self, op: Ops, back: ir.Value) -> tuple[dict[ir.Value, ir.Value], list[ir.Value]]:
        """The rows of one iteration; nothing is left, since rows are not carried."""
        found = {}
        for value, rows in (*self.rows.items(), *self.incoming):
            found[value] = op.Gather(rows, back, axis=0)
            found[value].type, found[value].shape = value.type, value.shape
        return found, []


def name_outputs(op: Ops, node: ir.Node, results: Sequence[ir.Value]) -> None:
    """Name and type the outputs that a loop or scan leaves out, so that more can follow."""
    node.resize_outputs(len(results))
    for index, (value, result) in enumerate(zip(node.outputs, results, strict=True)):
        value.name = value.name or f"{op.prefix}result{index}"
        value.type = value.type or result.type


def _row(op: Ops, node: ir.Node, body: ir.Graph, value: ir.Value) -> ir.Value:
    """The scan output of a node that has a value of its body in every iteration."""
    if not isinstance(value.type, ir.TensorType):
        raise cannot_keep(node, value, "iteration")
    return scan_output(op, node, body, value)


def cannot_keep(node: ir.Node, value: ir.Value, every: str) -> NoGradientError:
    """What to say where a sequence would have to be a row of a tensor."""
    return NoGradientError(
        f"the gradient of node '{node.name}' ({node.op_type}) would have to keep the "
        f"{type_string(value.type)} '{value.name}' of every {every}\n"
        f"  convert the model to opset {SEQUENCES_SINCE} or later"
    )


def scan_output(op: Ops, node: ir.Node, body: ir.Graph, value: ir.Value, axes: int = 1) -> ir.Value:
    """A new last output of a loop or scan: a value of its body in every iteration, stacked.

    Args:
        op: Builder of the backward node.
        node: The loop or scan.
        body: Its body.
        value: A value of the body.
        axes: How many axes the output has before those of the value.
    """
    inner = Ops(op.graph, f"{op.prefix}row/")
    row = inner.Identity(value)
    row.type, row.shape = value.type, value.shape
    body.extend(inner.nodes)
    body.outputs.append(row)
    node.resize_outputs(len(node.outputs) + 1)
    output = node.outputs[-1]
    output.name, output.type = f"{row.name}s", row.type
    if row.shape is not None:
        output.shape = ir.Shape([*[None] * axes, *row.shape])
    return output


def _popped(
    op: Ops, stack: ir.Value, like: ir.Value, count: ir.Value | None = None
) -> tuple[ir.Value, ir.Value]:
    """What lies on top of a stack (several elements for a sequence), and what is left."""
    size = op.const(1) if count is None else count
    left, last = op.SequenceCut(stack, size, _outputs=2, _domain=OWN)
    value = taken(op, last, op.const(0), like) if count is None else last
    value.type, value.shape = like.type, like.shape
    return value, left


def stack_of(value: ir.Value, name: str) -> ir.Value:
    """A sequence that values like this one are kept in."""
    return ir.Value(name=name, type=ir.SequenceType(ir.TensorType(held_as(value))))


def held_as(value: ir.Value) -> DataType:
    """The type in which a sequence of ONNX holds values like this one."""
    if value.dtype is None:
        raise NoGradientError(f"the type of '{value.name}' is not known, the gradient needs it")
    return DataType.FLOAT if value.dtype == DataType.BFLOAT16 else value.dtype


def holdable(op: Ops, value: ir.Value) -> ir.Value:
    """A tensor as a sequence can hold it."""
    return op.cast(value, held_as(value))


def taken(op: Ops, sequence: ir.Value, index: ir.Value, like: ir.Value) -> ir.Value:
    """An element of a sequence in the type that it had before."""
    element: ir.Value = op.SequenceAt(sequence, index)
    element.type, element.shape = ir.TensorType(held_as(like)), like.shape
    return op.cast(element, like)


def take_over(
    node: ir.Node, values: Sequence[ir.Value], results: Sequence[ir.Value], prefix: str
) -> None:
    """Let other values stand for the outputs of a node, under their names."""
    for index, (new, result) in enumerate(zip(values, results, strict=True)):
        old = node.outputs[index] if index < len(node.outputs) else None
        if old is not None and old.name:
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            new.name, new.type, new.shape = old.name, old.type, old.shape
        else:
            new.name, new.type = f"{prefix}{index}", result.type
