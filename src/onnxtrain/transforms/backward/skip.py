"""A sum and the layer or RMS normalization behind it in one operator, which gives both."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.edit import detach, take_over
from onnxtrain.types import MS, ONNX, DataType

_JOINED = {
    "LayerNormalization": ("SkipLayerNormalization", (0, 1, 2)),
    "SimplifiedLayerNormalization": ("SkipSimplifiedLayerNormalization", (0, 2)),
}
"""What such a normalization becomes, and which outputs of that its own are."""
_SUM = 3
"""The output that is the sum."""
_NARROW = (DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16)


def join_skips(model: ir.Model) -> int:
    """Join every sum of equal shapes with the normalization that reads it; gives their number."""
    graph = model.graph
    places = {node: index for index, node in enumerate(graph)}
    replaced: list[ir.Node] = []
    for node in list(graph):
        if node.domain == ONNX and node.op_type in _JOINED:
            total = _summed(node)
            if total is not None and _is_first_reader(total, node, places):
                _join(graph, total, node)
                replaced += detach(node, total)
    if replaced:
        graph.remove(replaced, safe=True)
        graph.opset_imports.setdefault(MS, 1)
    return len(replaced) // 2


def _summed(norm: ir.Node) -> ir.Node | None:
    """The sum that is normalized over its last axis, if both terms have its shape and type."""
    x = norm.inputs[0]
    total = None if x is None else x.producer()
    if x is None or total is None or (total.domain, total.op_type) != (ONNX, "Add"):
        return None
    if x.dtype not in _NARROW or not _is_plain(norm, x) or total.graph is not norm.graph:
        return None
    same = all(
        term is not None
        and term.shape is not None
        and term.shape == x.shape
        and term.dtype == x.dtype
        for term in total.inputs
    )
    return total if same else None


def _is_plain(norm: ir.Node, x: ir.Value) -> bool:
    """Whether the last axis is normalized, with vectors of its length and type: all there can be.

    These are a scale and a shift, or the scale of a normalization that has no shift.
    """
    axis, stash = norm.attributes.get("axis"), norm.attributes.get("stash_type")
    rank = 0 if x.shape is None else len(x.shape)
    last = axis is None or axis.as_int() in (-1, rank - 1)
    single = stash is None or stash.as_int() == int(DataType.FLOAT)
    vectors = [value for value in norm.inputs[1:3] if value is not None]
    fit = len(vectors) == (2 if norm.op_type == "LayerNormalization" else 1) and all(
        v.dtype == x.dtype and v.shape is not None and list(v.shape) == [x.shape[-1]]
        for v in vectors
        if x.shape is not None
    )
    return last and single and rank > 1 and fit


def _is_first_reader(total: ir.Node, norm: ir.Node, places: dict[ir.Node, int]) -> bool:
    """Whether nothing reads the sum before the normalization runs."""
    return all(places.get(use.node, -1) >= places[norm] for use in total.outputs[0].uses())


def _join(graph: ir.Graph, total: ir.Node, norm: ir.Node) -> None:
    kept = {k: v for k, v in norm.attributes.items() if k == "epsilon"}
    kept = kept or {"epsilon": ir.AttrFloat32("epsilon", 1e-5)}
    op_type, places = _JOINED[norm.op_type]
    joined = ir.node(
        op_type,
        [*total.inputs, *norm.inputs[1:3]],
        kept,
        domain=MS,
        num_outputs=4,
        name=f"{norm.name}_Skip",
    )
    graph.insert_before(norm, joined)
    olds = dict(zip(places, norm.outputs, strict=False)) | {_SUM: total.outputs[0]}
    for place, new in enumerate(joined.outputs):
        if place in olds:
            take_over(olds[place], new)
        else:
            new.name = ""
