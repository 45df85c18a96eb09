"""Loops that push onto sequences and pop off them: the loop itself does both.

What the backward pass of a loop needs is pushed onto sequences that the loop carries. Each push and
each pop makes a new sequence, which takes as long as it is: where nothing else is done with it, a
list to which the loop appends, or from whose end it takes, does as well.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

import onnx_ir as ir

from onnxtrain.gradients.control_flow_keep import SEQUENCES_SINCE
from onnxtrain.gradients.known import ints_of
from onnxtrain.graph.bindings import onnx_opset
from onnxtrain.graph.edit import detach, is_used, sole_reader, take_over
from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import ONNX, OWN


@dataclasses.dataclass
class _Found:
    """The carried values of a loop, by what is done with them, each by its place.

    Attributes:
        others: Anything else.
        pushed: What is pushed onto sequences that begin empty.
        popped: What is popped off sequences of which nobody wants the rest.
        dead: Nodes that push and pop.
    """

    others: list[int] = dataclasses.field(default_factory=list)
    pushed: dict[int, ir.Value] = dataclasses.field(default_factory=dict)
    popped: dict[int, ir.Value] = dataclasses.field(default_factory=dict)
    dead: list[ir.Node] = dataclasses.field(default_factory=list)


def run_on_stacks(model: ir.Model) -> int:
    """Let loops push and pop by themselves, in place; gives the number of such sequences."""
    if onnx_opset(model.graph.opset_imports) < SEQUENCES_SINCE:
        return 0
    loops = [n for n in all_nodes(model.graph) if (n.domain, n.op_type) == (ONNX, "Loop")]
    count = 0
    for loop in loops:
        found = _sequences(loop)
        if found.pushed or found.popped:
            _rewrite(loop, found)
            count += len(found.pushed) + len(found.popped)
    if count:
        model.graph.opset_imports.setdefault(OWN, 1)
    return count


def _sequences(loop: ir.Node) -> _Found:
    body, found = loop.attributes["body"].as_graph(), _Found()
    starts, results = [*loop.inputs][2:], [*body.outputs]
    times = Counter(results)
    for index, (start, carried) in enumerate(zip(starts, [*body.inputs][2:], strict=True)):
        node, result = sole_reader(carried), results[1 + index]
        alone = not result.uses() and times[result] == 1
        if node is None or not alone or node.graph is not body or start is None:
            found.others.append(index)
        elif (value := _pushed(node, carried, result, start)) is not None:
            found.pushed[index] = value
            found.dead.append(node)
        elif (at := _popping(node, result)) is not None and not _is_wanted(loop, index):
            found.popped[index] = at.outputs[0]
            found.dead += [at, node]
        else:
            found.others.append(index)
    return found


def _pushed(node: ir.Node, carried: ir.Value, result: ir.Value, start: ir.Value) -> ir.Value | None:
    """What a node appends to a sequence that begins empty, and that is handed on."""
    begin = start.producer()
    if begin is None or (begin.domain, begin.op_type) != (ONNX, "SequenceEmpty"):
        return None
    appends = (node.domain, node.op_type) == (ONNX, "SequenceInsert")
    if not appends or result.producer() is not node or any(node.inputs[2:]):
        return None
    return node.inputs[1] if node.inputs[0] is carried else None


def _popping(node: ir.Node, result: ir.Value) -> ir.Node | None:
    """The node that reads the one element which another takes off, handing on the rest."""
    cuts = (node.domain, node.op_type) == (OWN, "SequenceCut") and node.outputs[0] is result
    if not cuts or ints_of(node.inputs[1]) != [1]:
        return None
    at = sole_reader(node.outputs[1])
    if at is None or (at.domain, at.op_type) != (ONNX, "SequenceAt") or at.graph is not node.graph:
        return None
    fits = ints_of(at.inputs[1]) == [0] and not at.outputs[0].is_graph_output()
    return at if fits else None


def _is_wanted(loop: ir.Node, index: int) -> bool:
    return index < len(loop.outputs) and is_used(loop.outputs[index])


def _rewrite(loop: ir.Node, found: _Found) -> None:
    """Put a loop with stacks in the place of one that carries sequences."""
    body, count = loop.attributes["body"].as_graph(), len(loop.inputs) - 2
    taken = []
    for value in found.popped.values():
        parameter = ir.Value(name=f"{value.name}_popped", type=value.type, shape=value.shape)
        value.replace_all_uses_with(parameter)
        taken.append(parameter)
    given, results, starts = [*body.inputs], [*body.outputs], [*loop.inputs]
    parameters = dict(zip(found.popped.values(), taken, strict=True))
    own = {*given, *taken}
    pushed = [
        _own(body, own, parameters.get(value, value), f"{results[1 + index].name}_element")
        for index, value in found.pushed.items()
    ]
    body.inputs[:] = [*given[:2], *(given[2 + i] for i in found.others), *taken]
    body.outputs[:] = [
        results[0], *(results[1 + i] for i in found.others), *pushed, *results[1 + count :],
    ]  # fmt: skip
    body.remove(list(detach(*found.dead)), safe=True)
    rows = len(loop.outputs) - count
    new = ir.Node(
        OWN,
        "StackLoop",
        [*starts[:2], *(starts[2 + i] for i in [*found.others, *found.popped])],
        [
            *loop.attributes.values(),
            ir.AttrInt64("pops", len(taken)),
            ir.AttrInt64("pushes", len(pushed)),
        ],
        num_outputs=len(found.others) + len(pushed) + max(0, rows),
        name=loop.name,
    )
    new.metadata_props.update(loop.metadata_props)
    new.doc_string = loop.doc_string
    graph = loop.graph
    assert graph is not None
    graph.insert_before(loop, new)
    places = [*found.others, *found.pushed, *range(count, len(loop.outputs))]
    for place, value in zip(places, new.outputs, strict=True):
        if place < len(loop.outputs):
            take_over(loop.outputs[place], value)
        else:
            value.name = ""
    graph.remove(list(detach(loop)), safe=True)


def _own(body: ir.Graph, inputs: set[ir.Value], value: ir.Value, name: str) -> ir.Value:
    """A value that a body may give: what comes from outside may be another graph's result."""
    made = value.producer()
    if value in inputs or (made is not None and made.graph is body):
        return value
    node = ir.Node(ONNX, "Identity", [value])
    given = node.outputs[0]
    given.name, given.type, given.shape = name, value.type, value.shape
    body.append(node)
    return given
