"""Operators that ONNX had on trial and took back, as the nodes that say the same.

Old converters (Core ML, Caffe2) wrote them, and onnxruntime still runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import ONNX, DataType

_END = 2**31 - 1


def replace_withdrawn(model: ir.Model) -> None:
    """Rewrite nodes of such operators, in place."""
    found = [n for n in all_nodes(model.graph) if n.op_type in _REWRITES and n.domain == ONNX]
    for node in found:
        if node.graph is not None:
            _replaced(node, model.opset_imports.get(ONNX, 1))


class _Before:
    """Emits nodes before another one; the last of them takes over its output."""

    def __init__(self, node: ir.Node, opset: int) -> None:
        self.node, self.opset = node, opset
        self.nodes: list[ir.Node] = []

    def emit(self, op: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        made = ir.node(op, inputs, attributes, name=f"{self.node.name}/{op}_{len(self.nodes)}")
        made.outputs[0].name = self._name()
        self.nodes.append(made)
        return made.outputs[0]

    def number(self, value: object) -> ir.Value:
        """A constant in the element type of the input, as old opsets cannot mix types."""
        dtype = self.x.dtype or DataType.FLOAT
        made = self.emit("Constant", value=ir.tensor(np.asarray(value, dtype.numpy())))
        made.type = ir.TensorType(dtype)
        return made

    @property
    def x(self) -> ir.Value:
        (value,) = self.node.inputs
        assert value is not None
        return value

    def real(self, name: str, default: float) -> float:
        return self.node.attributes.get_float(name, default)

    def _name(self) -> str:
        assert isinstance(self.node.graph, ir.Graph)
        return unique_name(self.node.graph, f"{self.node.outputs[0].name}_{len(self.nodes)}")


def _scaled(at: _Before) -> ir.Value:
    """y = scale·x."""
    return at.emit("Mul", at.x, at.number(at.real("scale", 1.0)))


def _affine(at: _Before) -> ir.Value:
    """y = α·x + β."""
    product = at.emit("Mul", at.x, at.number(at.real("alpha", 1.0)))
    return at.emit("Add", product, at.number(at.real("beta", 0.0)))


def _image_scaler(at: _Before) -> ir.Value:
    """y = scale·x + bias, one bias for each channel."""
    bias = np.asarray(at.node.attributes["bias"].as_floats()).reshape(-1, 1, 1)
    return at.emit("Add", _scaled(at), at.number(bias))


def _scaled_tanh(at: _Before) -> ir.Value:
    """y = α·tanh(β·x)."""
    return _around(at, "Tanh")


def _parametric_softplus(at: _Before) -> ir.Value:
    """y = α·ln(exp(β·x) + 1)."""
    return _around(at, "Softplus")


def _around(at: _Before, op: str) -> ir.Value:
    inner = at.emit(op, at.emit("Mul", at.x, at.number(at.real("beta", 1.0))))
    return at.emit("Mul", inner, at.number(at.real("alpha", 1.0)))


def _crop(at: _Before) -> ir.Value:
    """Borders (left, top, right, bottom) cut off; with a scale (height, width) so much is left."""
    left, top, right, bottom = at.node.attributes["border"].as_ints()
    if scale := at.node.attributes.get_ints("scale"):
        ends = [top + scale[0], left + scale[1]]
    else:
        ends = [-bottom if bottom else _END, -right if right else _END]
    return _sliced(at, [top, left], ends)


def _sliced(at: _Before, starts: list[int], ends: list[int]) -> ir.Value:
    if at.opset < 10:
        return at.emit("Slice", at.x, starts=starts, ends=ends, axes=[2, 3])
    places = [at.emit("Constant", value=ir.tensor(np.asarray(v))) for v in (starts, ends, [2, 3])]
    return at.emit("Slice", at.x, *places)


_REWRITES: dict[str, Callable[[_Before], ir.Value]] = {
    "Affine": _affine,
    "Crop": _crop,
    "ImageScaler": _image_scaler,
    "ParametricSoftplus": _parametric_softplus,
    "Scale": _scaled,
    "ScaledTanh": _scaled_tanh,
}


def _replaced(node: ir.Node, opset: int) -> None:
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    at, old = _Before(node, opset), node.outputs[0]
    new = _REWRITES[node.op_type](at)
    graph.insert_before(node, at.nodes)
    new.type, new.shape = old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    name = old.name
    graph.remove(node, safe=True)
    new.name = name
