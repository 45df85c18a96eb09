"""Split: parts of a tensor that were put into a sequence and taken out again."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.graph.edit import take_over
from onnxtrain.graph.inference.products import integers
from onnxtrain.transforms.fusion.pattern import Refusal
from onnxtrain.transforms.fusion.reading import is_op, number, rank
from onnxtrain.transforms.fusion.report import Fused, Missed, Report

NAME = "Split"
_SIZES_AS_INPUT = 13
"""From this opset on Split takes the sizes of its parts as an input."""


def split(graph: ir.Graph, report: Report) -> None:
    """Replace every SplitToSequence whose parts are taken out one by one, in place."""
    for node in list(graph):
        if not is_op(node, "SplitToSequence"):
            continue
        try:
            sizes = _sizes(node)
            taken = _taken(node, len(sizes))
        except Refusal as refusal:
            report.missed.append(Missed(NAME, str(node.name), str(refusal)))
            continue
        replaced = (str(node.name), *(str(one.name) for one, _ in taken))
        report.fused.append(Fused(NAME, _replace(graph, node, sizes, taken), replaced))


def _sizes(node: ir.Node) -> list[int]:
    """How large the parts are."""
    x = node.inputs[0]
    axis = node.attributes.get_int("axis", 0)
    whole = None if x is None or x.shape is None else list(x.shape)[axis]
    given = node.inputs[1] if len(node.inputs) > 1 else None
    sizes = None if given is None else integers(given)
    if given is not None and (sizes is None or 0 in sizes):
        raise Refusal("the sizes of the parts are not known")
    if sizes is not None and rank(given) == 1:
        return sizes
    if not isinstance(whole, int):
        raise Refusal("the size of what is split is not known")
    if sizes is not None:
        return [min(sizes[0], whole - start) for start in range(0, whole, sizes[0])]
    if not node.attributes.get_int("keepdims", 1):
        raise Refusal("the parts lose the axis along which they are split")
    return [1] * whole


def _taken(node: ir.Node, count: int) -> list[tuple[ir.Node, int]]:
    """Who takes which part."""
    found = []
    for reader, _ in node.outputs[0].uses():
        place = number(reader.inputs[1]) if is_op(reader, "SequenceAt") else None
        if place is None:
            raise Refusal(f"'{reader.name}' ({reader.op_type}) reads the parts as a sequence")
        if reader.graph is not node.graph:
            raise Refusal(f"'{reader.name}' takes a part in a body")
        if not -count <= place < count:
            raise Refusal(f"'{reader.name}' takes a part that is not there")
        found.append((reader, int(place)))
    if node.outputs[0].is_graph_output():
        raise Refusal("the sequence is an output of the model")
    return found


def _replace(
    graph: ir.Graph, node: ir.Node, sizes: list[int], taken: list[tuple[ir.Node, int]]
) -> str:
    op = Ops(graph, f"{node.name}/")
    axis, count = node.attributes.get_int("axis", 0), len(sizes)
    if op.opset >= _SIZES_AS_INPUT:
        op.Split(node.inputs[0], op.ints(sizes), axis=axis, _outputs=count)
    else:
        op.Split(node.inputs[0], axis=axis, split=sizes, _outputs=count)
    parts = op.nodes[-1].outputs
    graph.insert_before(node, op.nodes)
    first: dict[int, ir.Value] = {}
    for reader, place in taken:
        if place % count in first:
            reader.outputs[0].replace_all_uses_with(first[place % count], True)
        else:
            first[place % count] = parts[place]
            take_over(reader.outputs[0], parts[place])
    graph.remove([node, *(reader for reader, _ in taken)], safe=True)
    return str(op.nodes[0].name)
