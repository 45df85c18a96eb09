"""Operators that ONNX had on trial, and took back or changed, as the nodes that say the same.

Old converters (Core ML, Caffe2) wrote them, and onnxruntime still runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import ONNX, DataType

_END = 2**31 - 1


def replace_withdrawn(model: ir.Model) -> None:
    """Rewrite nodes of such operators, in place."""
    opset = model.opset_imports.get(ONNX, 1)
    found = [node for node in all_nodes(model.graph) if _is_on_trial(node, opset)]
    for node in found:
        if node.graph is not None:
            _replaced(node, opset)


def _is_on_trial(node: ir.Node, opset: int) -> bool:
    adopted = _ADOPTED.get(node.op_type, opset + 1)
    return node.domain == ONNX and node.op_type in _REWRITES and opset < adopted


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
        value = self.node.inputs[0]
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
    return _sliced(at, starts=[top, left], ends=ends, axes=[2, 3])


def _sliced(at: _Before, **places: list[int]) -> ir.Value:
    if at.opset < 10:
        return at.emit("Slice", at.x, **places)
    given = [at.emit("Constant", value=ir.tensor(np.asarray(v))) for v in places.values()]
    return at.emit("Slice", at.x, *given)


def _dynamic_slice(at: _Before) -> ir.Value:
    """Slice with its places as inputs, which must be constants before opset 10."""
    given = [value for value in at.node.inputs if value is not None]
    if at.opset >= 10:
        return at.emit("Slice", *given)
    tensors = [ir.convenience.get_const_tensor(value) for value in given[1:]]
    if None in tensors:
        raise GraphError(
            f"cannot read node '{at.node.name}' (DynamicSlice, which ONNX took back): its places "
            "are computed\n  convert the model to opset 10 or later, where Slice takes them"
        )
    known = [t.numpy().ravel().tolist() for t in tensors if t is not None]
    return _sliced(at, **dict(zip(("starts", "ends", "axes"), known, strict=False)))


def _thresholded_relu(at: _Before) -> ir.Value:
    """y = x where x > α, else 0."""
    passed = at.emit("Greater", at.x, at.number(at.real("alpha", 1.0)))
    return at.emit("Mul", at.x, at.emit("Cast", passed, to=at.x.dtype or DataType.FLOAT))


def _mean_variance(at: _Before) -> ir.Value:
    """y = (x - mean) / sqrt(var + 1e-9) of each channel, or of all, and maybe not divided."""
    axes = [0, 1, 2, 3] if at.node.attributes.get_int("across_channels", 0) else [0, 2, 3]
    centred = at.emit("Sub", at.x, at.emit("ReduceMean", at.x, axes=axes))
    if not at.node.attributes.get_int("normalize_variance", 1):
        return centred
    variance = at.emit("ReduceMean", at.emit("Mul", centred, centred), axes=axes)
    return at.emit("Div", centred, at.emit("Sqrt", at.emit("Add", variance, at.number(1e-9))))


_ADOPTED = {"MeanVarianceNormalization": 9, "ThresholdedRelu": 10}
"""Opsets since which operators are ONNX's own, in another form."""
_REWRITES: dict[str, Callable[[_Before], ir.Value]] = {
    "Affine": _affine,
    "Crop": _crop,
    "DynamicSlice": _dynamic_slice,
    "ImageScaler": _image_scaler,
    "MeanVarianceNormalization": _mean_variance,
    "ParametricSoftplus": _parametric_softplus,
    "Scale": _scaled,
    "ScaledTanh": _scaled_tanh,
    "ThresholdedRelu": _thresholded_relu,
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
