"""Gradients that a backward loop adds up in every iteration: added up once, when it is done.

What a body captures gets a sum that the loop carries. Adding to it takes as long as it is large in
every iteration: a loop that takes one token each out of a tensor of all tokens takes four times as
long for twice as many. What is added is a product of what an iteration has; these go into
sequences, and one product of all of them follows the loop.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

import onnx_ir as ir

from onnxtrain.gradients.control_flow_keep import SEQUENCES_SINCE, held_as, stack_of
from onnxtrain.gradients.known import ints_of
from onnxtrain.gradients.rules import attribute
from onnxtrain.graph.bindings import onnx_opset
from onnxtrain.graph.builder import END, Ops
from onnxtrain.graph.edit import detach, is_used, sole_reader, take_over
from onnxtrain.graph.phase import Phase, mark, phase_of
from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import MS, ONNX, OWN

MANY = 256
"""Rows of an iteration from which on a product of its own costs no more."""


@dataclasses.dataclass(frozen=True)
class _Term:
    """What is added in an iteration, and which of the node's inputs an iteration makes."""

    node: ir.Node
    parts: tuple[ir.Value, ...]


@dataclasses.dataclass(frozen=True)
class _Sum:
    """A sum that a loop carries: the how-manieth it is, its terms, and the nodes that add them."""

    index: int
    terms: list[_Term]
    adding: list[ir.Node]


def sum_behind_loops(model: ir.Model) -> int:
    """Let products of all iterations follow backward loops; gives the number of sums."""
    if onnx_opset(model.graph.opset_imports) < SEQUENCES_SINCE:
        return 0
    loops = [node for node in all_nodes(model.graph) if _is_backward_loop(node)]
    count = 0
    for loop in reversed(loops):
        if sums := list(_sums_of(loop)):
            _Rewritten(model.graph, loop, sums)
            count += len(sums)
    return count


def _is_backward_loop(node: ir.Node) -> bool:
    loop = (node.domain, node.op_type) == (ONNX, "Loop")
    return loop and phase_of(node) is Phase.BACKWARD and "body" in node.attributes


def _sums_of(loop: ir.Node) -> Iterator[_Sum]:
    body = loop.attributes["body"].as_graph()
    carried, results = [*body.inputs][2:], [*body.outputs]
    times = Counter(results)
    for index, (total, result) in enumerate(zip(carried, results[1:], strict=False)):
        found = _Sum(index, [], [])
        if times[result] == 1 and _collect(body, total, result, found):
            yield found


def _collect(body: ir.Graph, total: ir.Value, result: ir.Value, found: _Sum) -> bool:
    """Note the terms of a sum of one carried value and products; whether it is nothing else."""
    first = sole_reader(total)
    if first is None or first.graph is not body or not total.name:
        return False
    if result.producer() is not first or result.uses():
        return False
    waiting = [first]
    while waiting:
        node = waiting.pop()
        if node.domain != ONNX or node.op_type not in ("Add", "Sum"):
            return False
        found.adding.append(node)
        for value in node.inputs:
            if value is total:
                continue
            made = None if value is None else value.producer()
            if value is None or made is None or made.graph is not body or not sole_reader(value):
                return False
            if made.op_type in ("Add", "Sum"):
                waiting.append(made)
            elif (term := _term(body, made)) is not None:
                found.terms.append(term)
            else:
                return False
    return True


def _term(body: ir.Graph, node: ir.Node) -> _Term | None:
    """A node whose results for all iterations can be had from what these have, one by one."""
    kind = (node.domain, node.op_type)
    if kind == (ONNX, "Gemm") and _is_sum_of_rows(node):
        parts = node.inputs[:2]
    elif kind == (ONNX, "ReduceSum") and _is_first_axis(node):
        parts = node.inputs[:1]
    elif kind == (MS, "GatherGrad") and _rank(node.inputs[1]) == 0 and _axis(node) is not None:
        parts = node.inputs[1:3]
    else:
        return None
    own = [value for value in parts if value is not None and _is_of(body, value)]
    return _Term(node, tuple(own)) if len(own) == len(parts) else None


def _is_of(body: ir.Graph, value: ir.Value) -> bool:
    """Whether each iteration has a value of its own, which a sequence can hold."""
    made = value.producer()
    inside = value in set(body.inputs) if made is None else made.graph is body
    tensor = isinstance(value.type, ir.TensorType) and value.dtype is not None
    return inside and tensor and held_as(value) == value.dtype


def _is_sum_of_rows(node: ir.Node) -> bool:
    """Whether it is Σ aᵀ·b over as many rows as there are, to which nothing is added."""
    added = len(node.inputs) > 2 and node.inputs[2] is not None and attribute(node, "beta", 1.0)
    left = node.inputs[0]
    if added or not attribute(node, "transA", 0) or attribute(node, "transB", 0) or left is None:
        return False
    rows = None if left.shape is None else left.shape[0]
    return not (isinstance(rows, int) and rows >= MANY)


def _is_first_axis(node: ir.Node) -> bool:
    axes = ints_of(node.inputs[1]) if len(node.inputs) > 1 else None
    return axes == [0] and not attribute(node, "keepdims", 1)


def _axis(node: ir.Node) -> int | None:
    """Along which axis there are indices, from the first one on; None if that is not known."""
    axis: int = attribute(node, "axis", 0)
    rank = _rank(node.outputs[0])
    return axis if axis >= 0 else None if rank is None else axis + rank


def _rank(value: ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


class _Rewritten:
    """A loop without some of its sums: their terms lie in sequences, and are added up behind it."""

    def __init__(self, root: ir.Graph, loop: ir.Node, sums: list[_Sum]) -> None:
        self._loop, self._body = loop, loop.attributes["body"].as_graph()
        self._inner, self._outer = (Ops(root, f"{loop.name}/{p}/") for p in ("pushed", "summed"))
        self._finals: dict[ir.Value, ir.Value] = {}
        self._joined: dict[tuple[ir.Value, int, bool], ir.Value] = {}
        initial = [*loop.inputs][2:]
        self._name_outputs(len(initial))
        removed = {found.index for found in sums}
        parts = [part for found in sums for term in found.terms for part in term.parts]
        new = self._without(removed, list(dict.fromkeys(parts)))
        for found in sums:
            self._add_up(found, initial[found.index], loop.outputs[found.index])
        graph = new.graph
        assert graph is not None
        graph.insert_after(new, [self._marked(node) for node in self._outer.nodes])
        graph.remove(list(detach(loop)), safe=True)
        dead = [node for found in sums for node in found.adding]
        dead += [term.node for found in sums for term in found.terms]
        measures = {
            made
            for node in dead
            for value in node.inputs
            if value is not None and (made := value.producer()) is not None
        }
        self._body.remove(list(detach(*dead)), safe=True)
        unread = [n for n in measures if n.op_type == "Shape" and n.graph is self._body]
        unread = [n for n in unread if not any(map(is_used, n.outputs))]
        self._body.remove(list(detach(*unread)), safe=True)

    def _name_outputs(self, count: int) -> None:
        """Give the loop all outputs that are carried."""
        named = len(self._loop.outputs)
        if named < count:
            self._loop.resize_outputs(count)
            for value in self._loop.outputs[named:]:
                value.name = ""

    def _without(self, removed: set[int], parts: list[ir.Value]) -> ir.Node:
        """The loop in its place, with sequences of parts instead of sums; the old one is left."""
        loop, body, inner = self._loop, self._body, self._inner
        count = len(body.inputs) - 2
        kept = [index for index in range(count) if index not in removed]
        carried = [stack_of(part, f"{inner.prefix}{i}") for i, part in enumerate(parts)]
        pushed = []
        for before, part in zip(carried, parts, strict=True):
            after = inner.SequenceInsert(before, part)
            after.type, after.shape = before.type, None
            pushed.append(after)
        body.extend([self._marked(node) for node in inner.nodes])
        inputs, outputs = [*body.inputs], [*body.outputs]
        body.inputs[:] = [*inputs[:2], *(inputs[2 + i] for i in kept), *carried]
        rows = outputs[1 + count :]
        body.outputs[:] = [outputs[0], *(outputs[1 + i] for i in kept), *pushed, *rows]
        empty = [self._outer.SequenceEmpty(dtype=int(part.dtype or 0)) for part in parts]
        given = [*loop.inputs]
        start = [*given[:2], *(given[2 + i] for i in kept), *empty]
        wanted = len(kept) + len(parts) + len(loop.outputs) - count
        new = ir.node("Loop", start, num_outputs=wanted, name=loop.name)
        new.attributes.update(loop.attributes)
        new.metadata_props.update(loop.metadata_props)
        self._marked(new)
        graph = loop.graph
        assert graph is not None
        graph.insert_before(loop, [*(self._marked(n) for n in self._outer.nodes), new])
        self._outer.nodes.clear()
        old = [*(loop.outputs[i] for i in kept), *loop.outputs[count:]]
        fresh = [*new.outputs[: len(kept)], *new.outputs[len(kept) + len(parts) :]]
        for value, other in zip(old, fresh, strict=True):
            take_over(value, other)
        for part, final in zip(parts, new.outputs[len(kept) :], strict=False):
            final.name = f"{inner.prefix}{part.name}_all"
            final.type = stack_of(part, "").type
            self._finals[part] = final
        return new

    def _add_up(self, found: _Sum, initial: ir.Value | None, result: ir.Value) -> None:
        assert initial is not None, "a carried value begins with something"
        op = self._outer
        if not is_used(result):
            return
        terms = [self._total(term, initial) for term in found.terms]
        if not _is_zero(initial):
            terms.append(initial)
        whole = terms[0] if len(terms) == 1 else op.Sum(*terms)
        take_over(result, whole)

    def _total(self, term: _Term, like: ir.Value) -> ir.Value:
        """The sum over all iterations of what one adds, in the shape of what it starts with."""
        op, node, parts = self._outer, term.node, term.parts
        sizes = op.shape(like)
        if node.op_type == "GatherGrad":
            axis = _axis(node)
            assert axis is not None, "it was looked at"
            places = self._all(parts[0], 0, op.ints([0]), new_axis=True)
            ends = [self._cut(sizes, 0, axis), op.ints([0]), self._cut(sizes, axis + 1)]
            rows = self._all(parts[1], axis, op.Concat(*ends, axis=0), new_axis=True)
            return op.GatherGrad(sizes, places, rows, axis=axis, _domain=MS)
        if node.op_type == "ReduceSum":
            return op.reduce_sum(self._rows(parts[0], sizes), [0], keepdims=False)
        left, right = (
            self._rows(part, self._cut(sizes, place, place + 1)) for place, part in enumerate(parts)
        )
        return op.Gemm(left, right, alpha=attribute(node, "alpha", 1.0), beta=0.0, transA=1)

    def _cut(self, sizes: ir.Value, start: int, end: int = END) -> ir.Value:
        """Some sizes; constants of constants, which a GPU would compute and the host wait for."""
        known = sizes.const_value
        if known is None:
            return self._outer.slice(sizes, start, end)
        return self._outer.ints(known.numpy()[start:end].tolist())

    def _rows(self, part: ir.Value, width: ir.Value) -> ir.Value:
        """Rows of all iterations, of a width."""
        op = self._outer
        return self._all(part, 0, op.Concat(op.ints([0]), width, axis=0))

    def _all(
        self, part: ir.Value, axis: int, nothing: ir.Value, new_axis: bool = False
    ) -> ir.Value:
        """A part in all iterations, along an axis; of a shape if there was no iteration."""
        key = part, axis, new_axis
        if key not in self._joined:
            self._joined[key] = self._outer.SequenceJoin(
                self._finals[part], nothing, axis=axis, new_axis=int(new_axis), _domain=OWN
            )
        return self._joined[key]

    def _marked(self, node: ir.Node) -> ir.Node:
        mark(node, Phase.BACKWARD)
        return node


def _is_zero(value: ir.Value) -> bool:
    """Whether a value is zeros in some shape."""
    made = value.producer()
    if made is None or (made.domain, made.op_type) != (ONNX, "Expand") or made.inputs[0] is None:
        return False
    constant = made.inputs[0].const_value
    return constant is not None and not constant.numpy().any()
