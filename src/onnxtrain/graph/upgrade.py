"""Models of opset 6 rewritten to opset 7, which broadcasts like everything after it.

Opset 6 says with attributes where the axes of a second operand belong; opset 7 aligns them at the
end, so an operand that belongs elsewhere gets axes of size 1 behind its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.graph.edit import unique_name

OLD, NEW = 6, 7
BINARY = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"}
)
DROPPED: Mapping[str, tuple[str, ...]] = {
    **{op: ("axis", "broadcast") for op in BINARY},
    "BatchNormalization": ("is_test",),
    "Dropout": ("is_test",),
    "GRU": ("output_sequence",),
    "Gemm": ("broadcast",),
    "LSTM": ("output_sequence",),
    "RNN": ("output_sequence",),
    "Upsample": ("height_scale", "width_scale"),
}
"""Attributes that opset 7 no longer has."""


def needs_upgrade(model: ir.Model) -> bool:
    """Whether a model is written in opset 6."""
    return model.opset_imports.get("") == OLD


def upgrade(model: ir.Model) -> None:
    """Rewrite a model of opset 6, whose ranks are known, to opset 7, in place."""
    for node in list(model.graph.all_nodes()):
        if node.domain != "":
            continue
        axis = _number(node, "axis", -1)
        if node.op_type in BINARY and _number(node, "broadcast", 0) and axis >= 0:
            _align(node, axis)
        elif node.op_type == "PRelu":
            _align(node, 1)
        elif node.op_type == "Upsample":
            scales = [1.0, 1.0, *(node.attributes.get_float(k) for k in DROPPED["Upsample"])]
            node.attributes.add(ir.AttrFloat32s("scales", scales))
        for name in DROPPED.get(node.op_type, ()):
            node.attributes.pop(name, None)
    model.opset_imports[""] = NEW


def _number(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def _align(node: ir.Node, axis: int) -> None:
    """Put the axes of the second operand at an axis of the first one."""
    first, second = node.inputs
    if first is None or second is None or first.shape is None or second.shape is None:
        raise GraphError(
            f"cannot broadcast the inputs of node '{node.name}' ({node.op_type}, opset {OLD}): "
            "their ranks are not known\n  declare the shapes of the model's inputs"
        )
    rank = len(second.shape)
    behind = len(first.shape) - axis - rank
    if behind <= 0 or rank == 0:
        return
    assert node.graph is not None
    axes = list(range(rank, rank + behind))
    wider = ir.node("Unsqueeze", [second], {"axes": axes}, name=f"{node.name}_align")
    wider.outputs[0].name = unique_name(node.graph, f"{second.name}_aligned")
    node.graph.insert_before(node, wider)
    node.replace_input_with(1, wider.outputs[0])
