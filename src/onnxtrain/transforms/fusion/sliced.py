"""Slices that together are all of a value along an axis come from one Split.

The gradient of Slices is a sum of tensors that are mostly zeros, that of Split is one Concat.
Slices that take every second element and the others (or every third ...) divide the axis first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.graph.edit import take_over
from onnxtrain.transforms.fusion.reading import is_op, taken
from onnxtrain.transforms.fusion.report import Fused, Report

NAME = "SlicedSplit"
_SIZES_AS_INPUT = 13
"""From this opset on Split takes the sizes of its parts, and Squeeze its axes, as an input."""


class _Part(NamedTuple):
    """What a Slice takes along its one axis."""

    node: ir.Node
    axis: int
    begin: int
    end: int
    step: int


def split_slices(graph: ir.Graph, report: Report) -> None:
    """Replace Slices of a value that are its parts, each of them once, in place."""
    places = {node: place for place, node in enumerate(graph)}
    seen: set[ir.Value] = set()
    for node in places:
        value = node.inputs[0] if is_op(node, "Slice") else None
        if value is None or value in seen or Ops(graph, "").opset < _SIZES_AS_INPUT:
            continue
        seen.add(value)
        for parts in _groups(value, graph):
            if _is_all(parts, value):
                replaced = tuple(str(part.node.name) for part in parts)
                first = min((part.node for part in parts), key=places.__getitem__)
                report.fused.append(Fused(NAME, _replace(graph, value, parts, first), replaced))


def _groups(value: ir.Value, graph: ir.Graph) -> Iterator[list[_Part]]:
    """Slices of a value by axis and step, in order."""
    found: dict[tuple[int, int], list[_Part]] = {}
    for reader, index in value.uses():
        part = taken(reader) if index == 0 and reader.graph is graph else None
        if part is not None and not reader.outputs[0].is_graph_output():
            found.setdefault((part.axis, part.step), []).append(_Part(reader, *part))
    for parts in found.values():
        yield sorted(parts, key=lambda part: part.begin)


def _is_all(parts: Sequence[_Part], value: ir.Value) -> bool:
    """Whether parts are not empty and are all of a value, each element in one of them."""
    step, size = parts[0].step, value.shape[parts[0].axis] if value.shape is not None else None
    if len(parts) < 2 or not isinstance(size, int):
        return False
    if step > 1:
        assert value.shape is not None
        behind = value.shape[parts[0].axis + 1 :]
        if not all(isinstance(n, int) and n > 0 for n in behind):
            return False
        begins = [part.begin for part in parts]
        ends = all(part.end > size - step + part.begin for part in parts)
        return size % step == 0 and begins == list(range(step)) and ends
    edges = [0, *(part.end for part in parts)]
    joined = [part.begin for part in parts] == edges[:-1] and edges[-1] == size
    return joined and all(part.end > part.begin for part in parts)


def _replace(graph: ir.Graph, value: ir.Value, parts: Sequence[_Part], before: ir.Node) -> str:
    op = Ops(graph, f"{before.name}/")
    axis, step = parts[0].axis, parts[0].step
    if step == 1:
        sizes = [part.end - part.begin for part in parts]
        made = list(op.Split(value, op.ints(sizes), axis=axis, _outputs=len(parts)))
    else:
        assert value.shape is not None
        shape = [*[0] * axis, int(str(value.shape[axis])) // step, step]
        rest = [n for n in value.shape[axis + 1 :] if isinstance(n, int)]
        divided = op.Reshape(value, op.ints([*shape, *rest]))
        ones = op.Split(divided, op.ints([1] * step), axis=axis + 1, _outputs=step)
        made = [op.squeeze(one, [axis + 1]) for one in ones]
    graph.insert_before(before, op.nodes)
    for part, new in zip(parts, made, strict=True):
        take_over(part.node.outputs[0], new)
    graph.remove([part.node for part in parts], safe=True)
    return str(op.nodes[0].name)
