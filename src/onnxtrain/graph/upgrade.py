"""Models of opsets 1 to 6 rewritten to opset 7, which broadcasts like everything after it.

The old opsets say with attributes where the axes of a second operand belong; opset 7 aligns them
at the end, so an operand that belongs elsewhere gets axes of size 1 behind its own. Nodes are
rewritten in order and their types inferred at once, so that later ones know the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.graph.edit import collected_names, declare_constant, unique_name
from onnxtrain.graph.inference.infer import KEEP_SHAPE, infer_node

NEW = 7
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
IN_PLACE = "consumed_inputs"
"""An attribute of the first opset: inputs that an operator may overwrite."""
OLD_SELU = {"alpha": 1.6732, "gamma": 1.0507}
"""Defaults that opset 6 made more precise."""


def needs_upgrade(model: ir.Model) -> bool:
    """Whether a model is written in an opset before 7."""
    return 1 <= model.opset_imports.get("", NEW) < NEW


def upgrade(model: ir.Model) -> None:
    """Rewrite a model of an opset before 7, in place.

    Raises:
        GraphError: if a node needs ranks or constants that are not known.
    """
    version = model.opset_imports[""]
    model.opset_imports[""] = NEW
    for graph in model.graphs():
        for value in graph.initializers.values():
            declare_constant(value)
    with collected_names(model.graph):
        for node in list(model.graph.all_nodes()):
            if node.domain == "":
                _rewrite(node, version)
            _infer(node, model.opset_imports)


def _rewrite(node: ir.Node, version: int) -> None:
    axis = node.attributes.get_int("axis", -1)
    aligned = node.attributes.get_int("broadcast", 0) != 0 and axis >= 0
    if node.op_type in BINARY and aligned:
        _align(node, axis)
    elif node.op_type in REWRITES:
        before, rewrite = REWRITES[node.op_type]
        if version < before:
            rewrite(node)
    for name in (IN_PLACE, *DROPPED.get(node.op_type, ())):
        node.attributes.pop(name, None)


def _infer(node: ir.Node, imports: dict[str, int]) -> None:
    infer_node(node, imports)
    first, result = node.inputs[0] if node.inputs else None, node.outputs[0]
    if first is not None and result.shape is None and node.op_type in KEEP_SHAPE:
        result.type, result.shape = first.type, first.shape


def _align(node: ir.Node, axis: int) -> None:
    """Put the axes of the second operand at an axis of the first one."""
    first, second = node.inputs
    if first is None or second is None or first.shape is None or second.shape is None:
        raise _unknown(node, "the ranks of its inputs")
    rank = len(second.shape)
    behind = len(first.shape) - axis - rank
    if behind <= 0 or rank == 0:
        return
    assert node.graph is not None
    axes = list(range(rank, rank + behind))
    wider = ir.node("Unsqueeze", [second], {"axes": axes}, name=f"{node.name}_align")
    wider.outputs[0].name = unique_name(node.graph, f"{second.name}_aligned")
    node.graph.insert_before(node, wider)
    _infer(wider, {"": NEW})
    node.replace_input_with(1, wider.outputs[0])


def _unknown(node: ir.Node, what: str) -> GraphError:
    return GraphError(
        f"cannot read node '{node.name}' ({node.op_type}, of an opset before {NEW}): "
        f"{what} are not known\n  declare the shapes of the model's inputs"
    )


def _align_slopes(node: ir.Node) -> None:
    """Slopes of PRelu belong to channels."""
    _align(node, 1)


def _list_scales(node: ir.Node) -> None:
    """Scales of an upsampling by two attributes become a list."""
    if "scales" not in node.attributes:
        scales = [1.0, 1.0, *(node.attributes.get_float(k) for k in DROPPED["Upsample"])]
        node.attributes.add(ir.AttrFloat32s("scales", scales))


def _number_type(node: ir.Node) -> None:
    """The target of a Cast was a name."""
    target = node.attributes["to"]
    if target.type == ir.AttributeType.STRING:
        node.attributes.add(ir.AttrInt64("to", ir.DataType[target.as_string().upper()]))


def _first_axis(node: ir.Node) -> None:
    """Concat joined along axis 1 unless it was told another."""
    if "axis" not in node.attributes:
        node.attributes.add(ir.AttrInt64("axis", 1))


def _shape_input(node: ir.Node) -> None:
    """The shape of a Reshape was an attribute."""
    if "shape" in node.attributes:
        sizes = node.attributes.pop("shape").as_ints()
        _append(node, "shape", np.asarray(sizes, np.int64))


def _append(node: ir.Node, name: str, content: np.ndarray) -> None:  # type: ignore[type-arg]
    """Give a node a constant as its second and last input."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    value = ir.Value(
        name=unique_name(graph, f"{node.name or node.outputs[0].name}_{name}"),
        const_value=ir.tensor(content),
    )
    declare_constant(value)
    graph.register_initializer(value)
    node.resize_inputs(2)
    node.replace_input_with(1, value)


def _rename_pads(node: ir.Node) -> None:
    """The widths of a Pad were called paddings."""
    node.attributes.add(ir.AttrInt64s("pads", node.attributes.pop("paddings").as_ints()))


def _split_attribute(node: ir.Node) -> None:
    """The sizes of a Split could be an input."""
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        sizes = _constant(node, 1)
        node.attributes.add(ir.AttrInt64s("split", [int(n) for n in sizes]))
        node.resize_inputs(1)


def _repeat_each(node: ir.Node) -> None:
    """A Tile repeated along a single axis, which was its third input."""
    if len(node.inputs) < 3:
        return
    x = node.inputs[0]
    if x is None or x.shape is None:
        raise _unknown(node, "the axes of its input")
    (count,), (axis,) = _constant(node, 1), _constant(node, 2)
    repeats = np.ones(len(x.shape), np.int64)
    repeats[int(axis)] = int(count)
    _append(node, "repeats", repeats)


def _constant(node: ir.Node, index: int) -> np.ndarray:  # type: ignore[type-arg]
    value = node.inputs[index]
    if value is None or value.const_value is None:
        raise _unknown(node, f"the values of its input {index}")
    return value.const_value.numpy().ravel()


def _old_defaults(node: ir.Node) -> None:
    for name, value in OLD_SELU.items():
        if name not in node.attributes:
            node.attributes.add(ir.AttrFloat32(name, value))


def _whole_power(node: ir.Node) -> None:
    """The power of a norm was a floating point number."""
    power = node.attributes.get("p")
    value = 2 if power is None else int(power.value)
    node.attributes.add(ir.AttrInt64("p", value))


REWRITES: Mapping[str, tuple[int, Callable[[ir.Node], None]]] = {
    "Cast": (6, _number_type),
    "Concat": (4, _first_axis),
    "GlobalLpPool": (2, _whole_power),
    "LpPool": (2, _whole_power),
    "PRelu": (7, _align_slopes),
    "Pad": (2, _rename_pads),
    "Reshape": (5, _shape_input),
    "Selu": (6, _old_defaults),
    "Split": (2, _split_attribute),
    "Tile": (6, _repeat_each),
    "Upsample": (7, _list_scales),
}
"""Operators that changed in another way: the opset before which they are rewritten, and how."""
