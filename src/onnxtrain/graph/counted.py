"""Loops that count: how often they run is told before they do.

A while loop of TensorFlow compares a counter with a limit in each iteration, which a host that
runs ahead of a device would have to wait for. Here such a Loop gets the number of its iterations,
and hands its condition on as it came.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.bindings import onnx_opset
from onnxtrain.graph.constants import constant
from onnxtrain.graph.edit import remove_dead, unique_name
from onnxtrain.types import ONNX, DataType

_GIVEN = 2
"""The body's own inputs, before the carried values: iteration and condition."""
_COMPARED = {"Less": (0, 0), "LessOrEqual": (0, 1), "Greater": (1, 0), "GreaterOrEqual": (1, 1)}
"""Where the counter stands in a comparison, and by how much the limit is moved for Less."""
_MOST_EXACT = 2**24
"""From here on a float32 does not tell whole numbers apart."""
_WHOLE_SINCE = 12
"""The first opset with Max and Min of whole numbers."""


@dataclasses.dataclass(frozen=True)
class _Bound:
    """A comparison that holds as long as first + step·iteration < limit + more."""

    first: int
    step: int
    limit: ir.Value
    more: int
    rounded: bool

    @property
    def iterations(self) -> int | None:
        """How often the body runs until it does not hold; None if only a run can tell."""
        limit = _number(self.limit)
        if limit is None or (self.rounded and limit > _MOST_EXACT):
            return None
        return 1 + max(0, -((self.first - limit - self.more) // self.step))

    @property
    def is_plain(self) -> bool:
        """Whether the run only has to take the limit."""
        return self.step == 1 and _number(self.limit) is None


def count_iterations(node: ir.Node, body: ir.Graph) -> None:
    """Tell a Loop how often it runs, if its condition compares counters with limits, in place."""
    bounds = list(_bounds(body.outputs[0], node, body))
    if not bounds or None in bounds:
        return
    known = [bound for bound in bounds if bound is not None]
    most = _least(node, known)
    if most is None:
        return
    node.replace_input_with(0, most)
    again = ir.node("Identity", [body.inputs[1]], name=f"{node.name}_goes_on")
    again.outputs[0].name = unique_name(body, f"{body.outputs[0].name}_again")
    again.outputs[0].type, again.outputs[0].shape = ir.TensorType(DataType.BOOL), ir.Shape([])
    body.append(again)
    body.outputs[0] = again.outputs[0]
    remove_dead(body)


def _bounds(value: ir.Value, node: ir.Node, body: ir.Graph) -> Iterator[_Bound | None]:
    """What must hold for a condition to be true; None for what is no comparison of a counter."""
    value, _ = _seen_through(value)
    maker = value.producer()
    if value is body.inputs[1] or _number(value) == 1:
        return
    if maker is None or maker.domain != ONNX or maker.graph is not body:
        yield None
    elif maker.op_type == "And":
        for part in maker.inputs:
            assert part is not None
            yield from _bounds(part, node, body)
    elif maker.op_type in _COMPARED:
        yield _bound(maker, node, body)
    else:
        yield None


def _bound(compared: ir.Node, node: ir.Node, body: ir.Graph) -> _Bound | None:
    place, more = _COMPARED[compared.op_type]
    found = [_seen_through(value) for value in compared.inputs if value is not None]
    (counter, _), (limit, rounded) = found[place], found[1 - place]
    counted = _counted(counter, node, body)
    maker = limit.producer()
    inside = limit in list(body.inputs) or (maker is not None and maker.graph is body)
    if counted is None or inside or counted[1] < 1:
        return None
    return _Bound(*counted, limit, more, rounded)


def _counted(value: ir.Value, node: ir.Node, body: ir.Graph) -> tuple[int, int] | None:
    """What a value is in the first iteration, and by how much it grows."""
    value, _ = _seen_through(value)
    if value is body.inputs[0]:
        return 0, 1
    carried = list(body.inputs[_GIVEN:])
    if value in carried:
        index = carried.index(value)
        first = _number(node.inputs[_GIVEN + index])
        step = _added(body.outputs[1 + index], value)
        return None if first is None or step is None else (first, step)
    for operand in _operands(value, body):
        more = _added(value, operand)
        before = None if more is None else _counted(operand, node, body)
        if more is not None and before is not None:
            return before[0] + more, before[1]
    return None


def _operands(value: ir.Value, body: ir.Graph) -> list[ir.Value]:
    maker = value.producer()
    if maker is None or maker.graph is not body or (maker.domain, maker.op_type) != (ONNX, "Add"):
        return []
    return [one for one in maker.inputs if one is not None]


def _added(value: ir.Value, to: ir.Value) -> int | None:
    """The number that is added to a value to make another."""
    maker = _seen_through(value)[0].producer()
    if maker is None or (maker.domain, maker.op_type) != (ONNX, "Add"):
        return None
    others = [one for one in maker.inputs if one is not None and _seen_through(one)[0] is not to]
    return _number(others[0]) if len(others) == 1 else None


def _seen_through(value: ir.Value) -> tuple[ir.Value, bool]:
    """What a value was before it was handed on or cast, and whether it was rounded in between."""
    rounded = False
    while (maker := value.producer()) is not None and maker.domain == ONNX:
        if maker.op_type not in ("Cast", "Identity") or maker.inputs[0] is None:
            break
        target = maker.attributes.get_int("to", DataType.INT64)
        rounded |= DataType(target) not in (DataType.INT32, DataType.INT64, DataType.DOUBLE)
        value = maker.inputs[0]
    return value, rounded


def _number(value: ir.Value | None) -> int | None:
    """The whole number, or truth value, that a constant is."""
    tensor = None if value is None else value.const_value
    if value is None or tensor is None or tensor.size != 1 or value.is_graph_input():
        return None
    found = tensor.numpy().item()
    return int(found) if found == int(found) else None


def _least(node: ir.Node, bounds: list[_Bound]) -> ir.Value | None:
    """The smallest number of iterations, by bounds and as the Loop was told; None if unclear."""
    graph = node.graph
    assert graph is not None
    told = node.inputs[0]
    known = [bound.iterations for bound in bounds if bound.iterations is not None]
    known += [n for n in [_number(told)] if n is not None]
    open_ = [bound for bound in bounds if bound.iterations is None]
    if open_ and not all(bound.is_plain for bound in open_):
        return None
    parts = [told] if told is not None and _number(told) is None else []
    if not open_ and not parts:
        return constant(graph, np.array(min(known)), unique_name(graph, f"{node.name}_times"))
    if onnx_opset(graph.opset_imports) < _WHOLE_SINCE:
        return None
    emit = _Emitter(node, graph)
    parts = [emit("Cast", part, to=int(DataType.INT64)) for part in parts]
    for bound in open_:
        limit = emit("Cast", bound.limit, to=int(DataType.INT64))
        more = emit.number(1 + bound.more - bound.first)
        parts.append(emit("Max", emit("Add", limit, more), emit.number(1)))
    parts += [emit.number(min(known))] if known else []
    return emit("Reshape", emit("Min", *parts), emit.number([]))


class _Emitter:
    """Emits nodes in front of a Loop."""

    def __init__(self, node: ir.Node, graph: ir.Graph) -> None:
        self._node, self._graph = node, graph

    def __call__(self, op_type: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        made = ir.node(op_type, list(inputs), attributes, name=f"{self._node.name}_{op_type}")
        made.outputs[0].name = unique_name(self._graph, f"{self._node.name}_{op_type.lower()}")
        self._graph.insert_before(self._node, made)
        return made.outputs[0]

    def number(self, of: int | list[int]) -> ir.Value:
        """A constant."""
        name = unique_name(self._graph, f"{self._node.name}_number")
        return constant(self._graph, np.array(of, np.int64), name)
