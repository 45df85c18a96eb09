"""Reshapes that only divide axes go before the Transposes whose axes they divide.

``[T, B, H*D] -> [T, B*H, D] -> [B*H, T, D] -> [B, H, T, D]`` becomes one Reshape and one Transpose.
Neither copies anything then, even if the first matrix is a part of a larger one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.graph.edit import take_over
from onnxtrain.transforms.fusion.reading import is_op, made_by, only_reader
from onnxtrain.transforms.fusion.report import Fused, Report

NAME = "DividedHeads"


def divide_first(graph: ir.Graph, report: Report) -> None:
    """Turn every Reshape, Transpose(s), Reshape that divides into Reshape, Transpose; in place."""
    for node in list(graph):
        if not is_op(node, "Reshape"):
            continue
        chain = _transposes(node)
        reshape = made_by(chain[0].inputs[0], "Reshape") if chain else None
        if reshape is None or only_reader(reshape.outputs[0], "Transpose") is not chain[0]:
            continue
        before, after = (_static(n.outputs[0]) for n in (reshape, node))
        if before is None or after is None or reshape.inputs[0] is None:
            continue
        order = _order(chain, len(before))
        groups = _groups([before[axis] for axis in order], after)
        if groups is not None:
            replaced = tuple(str(n.name) for n in (reshape, *chain, node))
            made = _replace(graph, reshape.inputs[0], node, order, groups)
            graph.remove(node, safe=True)
            report.fused.append(Fused(NAME, made, replaced))


def _transposes(node: ir.Node) -> list[ir.Node]:
    """Transposes right before a node that nobody else reads, the first one first."""
    chain: list[ir.Node] = []
    at = node
    while (found := made_by(at.inputs[0], "Transpose")) is not None:
        if only_reader(found.outputs[0], at.op_type) is not at:
            break
        chain.insert(0, found)
        at = found
    return chain


def _static(value: ir.Value) -> list[int] | None:
    """A shape without unknown or empty dimensions."""
    sizes = None if value.shape is None else [n for n in value.shape if isinstance(n, int) and n]
    return sizes if value.shape is not None and len(sizes or ()) == len(value.shape) else None


def _order(chain: Sequence[ir.Node], count: int) -> list[int]:
    """What Transposes do together: which axis of the input each of the output is."""
    order = list(range(count))
    for node in chain:
        perm = node.attributes.get_ints("perm", list(reversed(range(count))))
        order = [order[axis] for axis in perm]
    return order


def _groups(sizes: Sequence[int], divided: Sequence[int]) -> list[list[int]] | None:
    """The sizes into which each axis is divided; None if axes are also joined, or none divided."""
    groups: list[list[int]] = []
    rest = list(divided)
    for size in sizes:
        group: list[int] = []
        while rest and (not group or math.prod(group) < size):
            group.append(rest.pop(0))
        if math.prod(group) != size:
            return None
        groups.append(group)
    while groups and rest and rest[0] == 1:
        groups[-1].append(rest.pop(0))
    return None if rest or len(divided) == len(sizes) else groups


def _replace(
    graph: ir.Graph, x: ir.Value, node: ir.Node, order: Sequence[int], groups: list[list[int]]
) -> str:
    """Divide the axes of x before they are moved."""
    by_axis = {axis: group for axis, group in zip(order, groups, strict=True)}
    places: dict[int, list[int]] = {}
    shape: list[int] = []
    for axis in sorted(by_axis):
        places[axis] = list(range(len(shape), len(shape) + len(by_axis[axis])))
        shape += by_axis[axis]
    op = Ops(graph, f"{node.name}/")
    perm = [place for axis in order for place in places[axis]]
    made = op.Transpose(op.Reshape(x, op.ints(shape)), perm=perm)
    graph.insert_before(node, op.nodes)
    take_over(node.outputs[0], made)
    return str(op.nodes[-1].name)
