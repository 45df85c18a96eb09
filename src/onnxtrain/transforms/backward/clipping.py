"""Clipping by the norm of all gradients as a factor that the update multiplies them by.

The gradients are read once more for their norm, and not written.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.edit import unique_name
from onnxtrain.types import MS, OWN, DataType

_FACTOR = {"AdamWOptimizer": 8, "SGDOptimizerV2": 4}
"""Which input of an optimizer is a factor of its gradients."""
_GRADIENTS = {"AdamWOptimizer": 3, "SGDOptimizerV2": 2}


def fold_clipping(model: ir.Model) -> int:
    """Fold every clipping whose result one update alone reads, in place; gives their number."""
    graph = model.graph
    found = [n for n in graph if (n.domain, n.op_type) == (MS, "InplaceClipGradNorm")]
    pairs = [(node, update) for node in found if (update := _update(node)) is not None]
    for node, update in pairs:
        _fold(graph, node, update)
    if pairs:
        graph.opset_imports.setdefault(OWN, 1)
    return len(pairs)


def reads_only(model: ir.Model) -> bool:
    """Whether an optimizer model leaves its gradients as they are, and takes them in any type."""
    gradients = next(value for value in model.graph.inputs if value.name == "gradients")
    return not gradients.is_graph_output() and all(
        (use.node.domain, use.node.op_type) == (OWN, "ClipFactor")
        or (use.node.domain == MS and use.idx == _GRADIENTS.get(use.node.op_type))
        for use in gradients.uses()
    )


def _update(node: ir.Node) -> ir.Node | None:
    """The update that is the only one to read the clipped gradients."""
    uses = list(node.outputs[0].uses())
    if len(uses) != 1 or node.outputs[0].is_graph_output():
        return None
    if node.attributes.get_string("norm_type", "fro") != "fro":
        return None
    update, at = uses[0].node, uses[0].idx
    if update.domain != MS or at != _GRADIENTS.get(update.op_type):
        return None
    place = _FACTOR[update.op_type]
    return update if len(update.inputs) <= place or update.inputs[place] is None else None


def _fold(graph: ir.Graph, node: ir.Node, update: ir.Node) -> None:
    kept = {k: v for k, v in node.attributes.items() if k == "max_norm"}
    new = ir.node("ClipFactor", node.inputs, kept, domain=OWN, name=f"{node.name}_Factor")
    factor = new.outputs[0]
    factor.name = unique_name(graph, "clip_factor")
    factor.type, factor.shape = ir.TensorType(_type(node.inputs[0])), ir.Shape([])
    graph.insert_before(node, new)
    place = _FACTOR[update.op_type]
    if len(update.inputs) <= place:
        update.resize_inputs(place + 1)
    update.replace_input_with(place, factor)
    update.replace_input_with(_GRADIENTS[update.op_type], node.inputs[0])
    graph.remove(node, safe=True)


def _type(gradients: ir.Value | None) -> DataType:
    """float32, or float64 for gradients that are."""
    kind = None if gradients is None else gradients.type
    element = kind.elem_type if isinstance(kind, ir.SequenceType) else None
    wide = isinstance(element, ir.TensorType) and element.dtype == DataType.DOUBLE
    return DataType.DOUBLE if wide else DataType.FLOAT
