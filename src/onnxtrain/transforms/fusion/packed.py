"""Packed projections: parts that were picked one by one from a reshaped matrix come from Split.

Queries, keys and values of one projection, for instance. Gathers would copy each of them, and
their gradient would be a sum of tensors that are mostly zeros; that of Split is one Concat.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.graph.bindings import onnx_opset
from onnxtrain.graph.builder import Ops
from onnxtrain.graph.edit import take_over
from onnxtrain.graph.inference.products import integers
from onnxtrain.transforms.fusion.reading import is_op, made_by, only_reader, rank
from onnxtrain.transforms.fusion.report import Fused, Report

NAME = "PackedSplit"
_SIZES_AS_INPUT = 13
"""From this opset on Split takes the sizes of its parts as an input."""
_KEEPS = 5
"""From this opset on Reshape keeps dimensions that are given as 0."""


@dataclasses.dataclass(frozen=True)
class Packed:
    """Gathers of all parts of a matrix.

    Attributes:
        x: The matrix, whose last axis has the parts one behind the other.
        count: How many parts there are.
        inner: Sizes of the axes into which the last axis of a part is divided.
        order: Where the axes of a part (divided) are in what the Gathers give.
        gathers: Who picks each part.
    """

    x: ir.Value
    count: int
    inner: tuple[int, ...]
    order: tuple[int, ...]
    gathers: tuple[ir.Node, ...]


def unpack(graph: ir.Graph, report: Report) -> None:
    """Replace Gathers that pick all parts of a packed projection by one Split, in place."""
    places = {node: place for place, node in enumerate(graph)}
    for node in places:
        if not is_op(node, "Gather") or node.graph is not graph or node.inputs[0] is None:
            continue
        found = _packed(node.inputs[0])
        if found is not None and onnx_opset(graph.opset_imports) >= _KEEPS:
            replaced = tuple(str(gather.name) for gather in found.gathers)
            first = min(found.gathers, key=places.__getitem__)
            report.fused.append(Fused(NAME, _replace(graph, found, first), replaced))


def _packed(value: ir.Value) -> Packed | None:
    """What is picked from a value, if that is all parts of a matrix one by one."""
    gathers = _all_parts(value)
    if gathers is None:
        return None
    chain: list[ir.Node] = []
    at = value
    while (node := made_by(at, "Transpose", "Unsqueeze", "Squeeze")) is not None:
        chain.insert(0, node)
        if node.inputs[0] is None or only_reader(node.inputs[0], node.op_type) is not node:
            return None
        at = node.inputs[0]
    reshape = made_by(at, "Reshape")
    if reshape is None or (inner := _divided(reshape, len(gathers))) is None:
        return None
    x = reshape.inputs[0]
    outer = rank(x)
    assert x is not None and outer is not None
    axes = _followed(list(range(outer + len(inner))), chain)
    if axes is None or axes[_axis(gathers[0], len(axes))] != outer - 1:
        return None
    # the axis of the parts is gone, those behind it move up
    order = [n - (n > outer - 1) for n in axes if n != outer - 1]
    return Packed(x, len(gathers), inner, tuple(order), tuple(gathers))


def _all_parts(value: ir.Value) -> list[ir.Node] | None:
    """The Gathers that read a value, in the order of their parts, if each part has one."""
    readers = [node for node, place in value.uses() if is_op(node, "Gather") and place == 0]
    if len(readers) != len(value.uses()) or value.is_graph_output() or not rank(value):
        return None
    assert value.shape is not None
    axes = {_axis(node, len(value.shape)) for node in readers}
    indices = [integers(node.inputs[1]) if rank(node.inputs[1]) == 0 else None for node in readers]
    if len(axes) != 1 or len(readers) < 2:
        return None
    count = value.shape[axes.pop()]
    if not isinstance(count, int) or len(readers) != count or None in indices:
        return None
    parts = {one[0] % count: node for one, node in zip(indices, readers, strict=True) if one}
    if len(parts) != count:
        return None
    return [parts[index] for index in range(count)]


def _axis(gather: ir.Node, count: int) -> int:
    """The axis of a Gather from a value that has so many, counted from the front."""
    return gather.attributes.get_int("axis", 0) % count


def _divided(reshape: ir.Node, count: int) -> tuple[int, ...] | None:
    """How a Reshape divides each of the parts of the last axis, if that is all it does."""
    x, y = reshape.inputs[0], reshape.outputs[0]
    if x is None or x.shape is None or y.shape is None or not len(x.shape):
        return None
    outer = len(x.shape) - 1
    sizes = [n for n in y.shape[outer:] if isinstance(n, int)]
    if len(sizes) != len(y.shape) - outer or len(sizes) < 2 or 0 in sizes:
        return None
    same = all(_same(a, b) for a, b in zip(x.shape[:outer], y.shape[:outer], strict=True))
    if not same or math.prod(sizes) != x.shape[outer] or sizes[0] != count:
        return None
    return tuple(sizes[1:])


def _same(a: int | ir.SymbolicDim, b: int | ir.SymbolicDim) -> bool:
    """Whether two dimensions are known to be equal."""
    if isinstance(a, int) or isinstance(b, int):
        return a == b
    return a.value is not None and a.value == b.value


def _followed(axes: list[int], chain: Sequence[ir.Node]) -> list[int] | None:
    """Where axes are after operators that only move them; None if one of them is lost."""
    for node in chain:
        if node.op_type == "Transpose":
            order = node.attributes.get_ints("perm", list(reversed(range(len(axes)))))
            axes = [axes[n] for n in order]
            continue
        given = node.attributes.get_ints("axes", None)
        if given is None:
            given = integers(node.inputs[1]) if len(node.inputs) > 1 else None
        if given is None:
            return None
        if node.op_type == "Unsqueeze":
            for n in sorted(n % (len(axes) + len(given)) for n in given):
                axes.insert(n, _NEW)
            continue
        gone = {n % len(axes) for n in given}
        if any(axes[n] != _NEW for n in gone):
            return None
        axes = [axis for n, axis in enumerate(axes) if n not in gone]
    return None if _NEW in axes else axes


_NEW = -1
"""An axis of size 1 that the matrix does not have."""


def _replace(graph: ir.Graph, packed: Packed, before: ir.Node) -> str:
    op = Ops(graph, f"{packed.gathers[0].name}/")
    size = math.prod(packed.inner)
    sizes = [size] * packed.count
    if op.opset >= _SIZES_AS_INPUT:
        parts = op.Split(packed.x, op.ints(sizes), axis=-1, _outputs=packed.count)
    else:
        parts = op.Split(packed.x, axis=-1, split=sizes, _outputs=packed.count)
    outer = (rank(packed.x) or 1) - 1
    made = []
    for part in parts:
        if len(packed.inner) > 1:
            part = op.Reshape(part, op.ints([*[0] * outer, *packed.inner]))
        if packed.order != tuple(sorted(packed.order)):
            part = op.Transpose(part, perm=list(packed.order))
        made.append(part)
    graph.insert_before(before, op.nodes)
    for gather, part in zip(packed.gathers, made, strict=True):
        take_over(gather.outputs[0], part)
    graph.remove(packed.gathers, safe=True)
    return str(op.nodes[0].name)
