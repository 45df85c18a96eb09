"""Weights that a file stores as whole numbers, trained as the numbers that they stand for.

A quantised model has a DequantizeLinear, (q - zero)·scale, between such a weight and its layer. A
QuantizeLinear before it lets every step see the rounding, and lets gradients pass straight through.
When the model is written, the weight is rounded to what the file holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxtrain.graph.edit import collected_names, unique_name
from onnxtrain.types import FLOAT8, FLOATS, MS, ONNX, DataType

_LIMITS = {
    DataType.INT4: (-8, 7),
    DataType.UINT4: (0, 15),
    DataType.INT8: (-128, 127),
    DataType.UINT8: (0, 255),
    DataType.INT16: (-(2**15), 2**15 - 1),
    DataType.UINT16: (0, 2**16 - 1),
    DataType.INT32: (-(2**31), 2**31 - 1),
    DataType.FLOAT8E4M3FN: (-448, 448),
    DataType.FLOAT8E4M3FNUZ: (-240, 240),
    DataType.FLOAT8E5M2: (-57344, 57344),
    DataType.FLOAT8E5M2FNUZ: (-57344, 57344),
}
"""The numbers that types of few bits can hold; those of floats of 8 bits are not whole."""
_ATTRIBUTES = ("axis", "block_size")

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Stored:
    """How a weight is stored.

    Attributes:
        nodes: The nodes that undo its rounding, all in the same way.
        dtype: Its type in the file.
        scale: What one step of it is worth: a number, or one for each channel or block.
        zero: What stands for zero.
        axis: The axis of channels or blocks.
        block: Elements of a block; 0 if there are none.
    """

    nodes: tuple[ir.Node, ...]
    dtype: DataType
    scale: Array
    zero: Array
    axis: int
    block: int

    def floats(self, whole: Array) -> Array:
        """What whole numbers stand for, in the type of the scale."""
        steps = whole.astype(np.float64) - self._spread(self.zero, whole.shape)
        return (steps * self._spread(self.scale, whole.shape)).astype(self.scale.dtype)

    def whole(self, floats: Array) -> Array:
        """The nearest numbers that the file can hold; halves go to the even ones."""
        # float32 as in QuantizeLinear, so that the file holds what the last step computed with
        work = np.float64 if self.dtype == DataType.INT32 else np.float32
        steps = floats.astype(work) / self._spread(self.scale, floats.shape).astype(work)
        steps = steps if self.dtype in FLOAT8 else np.rint(steps)
        low, high = _LIMITS[self.dtype]
        held: Array = np.clip(steps + self._spread(self.zero, floats.shape), low, high)
        return held.astype(self.dtype.numpy())

    def _spread(self, numbers: Array, shape: tuple[int, ...]) -> Array:
        """One number for each element, or one that serves all."""
        numbers = numbers.astype(np.float64)
        if numbers.size == 1:
            return numbers.reshape(())
        if self.block:
            repeated = np.repeat(numbers, self.block, self.axis)
            return repeated.take(range(shape[self.axis]), self.axis)
        sizes = [1] * len(shape)
        sizes[self.axis] = -1
        return numbers.reshape(sizes)


def stored_weights(graph: ir.Graph) -> dict[str, Stored]:
    """Initializers that only a DequantizeLinear with constant scale reads, by name."""
    found = {name: _form(value) for name, value in graph.initializers.items()}
    return {name: form for name, form in found.items() if form is not None}


def unpack(model: ir.Model, names: Collection[str]) -> dict[str, Stored]:
    """Make weights that are stored as whole numbers floats, in place; gives how each was stored.

    Names of other tensors change nothing.
    """
    graph = model.graph
    forms = {name: form for name, form in stored_weights(graph).items() if name in names}
    with collected_names(graph):
        for name, form in forms.items():
            _unpack(graph, graph.initializers[name], form)
    return forms


def _form(value: ir.Value) -> Stored | None:
    tensor = value.const_value
    if tensor is None or tensor.dtype not in _LIMITS or value.is_graph_input():
        return None
    uses = list(value.uses())
    nodes = tuple(use.node for use in uses)
    if not nodes or value.is_graph_output() or not all(use.idx == 0 for use in uses):
        return None
    if not all(_undoes(node, nodes[0]) for node in nodes):
        return None
    scale, zero = (_constant(nodes[0], index) for index in (1, 2))
    if scale is None or (zero is None and _has(nodes[0], 2)):
        return None
    numbers = nodes[0].attributes
    axis, block = numbers.get_int("axis", 1), numbers.get_int("block_size", 0)
    return Stored(nodes, tensor.dtype, scale, np.zeros(()) if zero is None else zero, axis, block)


def _undoes(node: ir.Node, first: ir.Node) -> bool:
    """Whether a node is a DequantizeLinear that does what the first one does."""
    same = node.inputs[1:] == first.inputs[1:] and all(
        node.attributes.get_int(key, 0) == first.attributes.get_int(key, 0) for key in _ATTRIBUTES
    )
    known = node.domain in (ONNX, MS) and node.op_type == "DequantizeLinear"
    return known and same and node.graph is first.graph and not node.outputs[0].is_graph_output()


def _has(node: ir.Node, index: int) -> bool:
    return len(node.inputs) > index and node.inputs[index] is not None


def _constant(node: ir.Node, index: int) -> Array | None:
    """An input that no caller can change; a scale is a float."""
    value = node.inputs[index] if _has(node, index) else None
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    if index == 1 and value.const_value.dtype not in FLOATS:
        return None
    return np.asarray(value.const_value.numpy())


def _unpack(graph: ir.Graph, value: ir.Value, form: Stored) -> None:
    tensor = value.const_value
    assert tensor is not None
    first = form.nodes[0]
    scale = first.inputs[1]
    assert scale is not None and scale.const_value is not None
    if form.dtype == DataType.INT32:  # so fine that it need not be seen; nothing quantises to it
        for node in form.nodes:
            node.outputs[0].replace_all_uses_with(value)
            graph.remove(node, safe=True)
    else:
        _round(graph, value, form)
    value.type = ir.TensorType(scale.const_value.dtype)
    floats = form.floats(np.asarray(tensor.numpy()))
    value.const_value = ir.Tensor(floats, scale.const_value.dtype, name=value.name)


def _round(graph: ir.Graph, value: ir.Value, form: Stored) -> None:
    """Put a QuantizeLinear before the nodes that undo it."""
    first = form.nodes[0]
    inputs = [value, first.inputs[1], first.inputs[2] if _has(first, 2) else _zero(graph, form)]
    kept = {key: first.attributes[key] for key in _ATTRIBUTES if key in first.attributes}
    name = f"{value.name}_QuantizeLinear"
    node = ir.node("QuantizeLinear", inputs, kept, domain=first.domain, name=name)
    node.outputs[0].name = unique_name(graph, f"{value.name}_quantized")
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(form.dtype), value.shape
    graph.insert_before(next(iter(graph)), node)
    for one in form.nodes:
        one.replace_input_with(0, node.outputs[0])


def _zero(graph: ir.Graph, form: Stored) -> ir.Value:
    """Zeros of the stored type: without them a QuantizeLinear gives uint8."""
    name = unique_name(graph, "quantized_zero")
    tensor = ir.Tensor(np.zeros(form.scale.shape, form.dtype.numpy()), form.dtype, name=name)
    value = ir.Value(
        name=name, type=ir.TensorType(form.dtype), shape=tensor.shape, const_value=tensor
    )
    graph.register_initializer(value)
    return value
