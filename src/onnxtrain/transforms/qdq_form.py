"""Operators that compute with whole numbers, as real ones between quantisers, so that they train.

A quantised file has QLinearConv and its like, or MatMulInteger behind a DynamicQuantizeLinear.
Here each becomes DequantizeLinear, the plain operator and QuantizeLinear: gradients pass straight
through the rounding, and weights of whole numbers stand behind a DequantizeLinear, where they are
trained (see ``whole_numbers``). The file that is written keeps its operators.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnxtrain.gradients.rules import forwarded
from onnxtrain.graph.builder import Emit, Ops
from onnxtrain.graph.edit import is_used, take_over
from onnxtrain.graph.inference.infer import infer
from onnxtrain.types import INTEGERS, MS, ONNX

_MOVERS = frozenset(
    {
        *("DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND"),
        *("Identity", "MaxPool", "Reshape", "Slice", "SpaceToDepth", "Squeeze", "Tile"),
        *("Transpose", "Unsqueeze"),
    }
)
"""Operators that give the same for steps and for what they stand for, of their first input."""
_ALL_MOVED, _FILLED = "Concat", "Pad"
"""One that does so with all of its inputs, and one with the first and what it fills in."""
_AXES_SINCE = 13
"""Opset from which a DequantizeLinear may have a scale for each channel."""

Triple = tuple[ir.Value | None, ir.Value | None, ir.Value | None]


class _Around:
    """Emits nodes in the place of another one."""

    def __init__(self, node: ir.Node) -> None:
        graph = node.graph
        assert isinstance(graph, ir.Graph)
        self.node, self.graph = node, graph
        self.op = Ops(graph, f"{node.name}/")

    def triple(self, first: int) -> Triple:
        """A value, its scale and its zero point, which follow one another among the inputs."""
        values = [*self.node.inputs, *[None] * (first + 3)]
        return values[first], values[first + 1], values[first + 2]

    def real(self, of: Triple, axis: int = 0) -> ir.Value:
        """What whole numbers stand for; looks behind operators that only move them."""
        value, scale, zero = of
        assert value is not None and scale is not None
        before = value.producer()
        alone = _size(scale) == 1
        if alone and before is not None and _moves(before):
            move: Emit = getattr(self.op, before.op_type)
            return move(*self._moved(before, scale, zero), **forwarded(before))
        given = [value, self.plain(scale), None if zero is None else self.plain(zero)]
        if alone:
            return self.op.DequantizeLinear(*given)
        domain = ONNX if self.op.opset >= _AXES_SINCE else MS
        return self.op.DequantizeLinear(*given, axis=axis, _domain=domain)

    def _moved(
        self, node: ir.Node, scale: ir.Value, zero: ir.Value | None
    ) -> list[ir.Value | None]:
        """Inputs of a node that moves whole numbers, as it moves real ones."""
        first, *rest = node.inputs
        if node.op_type == _ALL_MOVED:
            return [self.real((value, scale, zero)) for value in node.inputs]
        if node.op_type == _FILLED:
            assert first is not None and first.dtype is not None
            filled = rest[1] if len(rest) > 1 else None
            filled = filled or self.op.const(np.zeros(()), first.dtype)
            rest[1:2] = [self.real((filled, scale, zero))]
        return [self.real((first, scale, zero)), *rest]

    def plain(self, value: ir.Value) -> ir.Value:
        """A constant of one number with no axes, of several with one; others as they are."""
        tensor = value.const_value
        if tensor is None or len(tensor.shape) == (tensor.size > 1):
            return value
        numbers = np.asarray(tensor.numpy())
        flat = numbers.reshape(()) if tensor.size == 1 else numbers.reshape(-1)
        return self.op.const(flat, tensor.dtype)

    def bias(self, index: int, a: ir.Value, b: ir.Value, factor: float = 1.0) -> ir.Value | None:
        """Whole numbers in steps of the product of two constant scales."""
        value = self.triple(index)[0]
        if value is None:
            return None
        scales = [np.asarray(one.const_value.numpy()) for one in (a, b) if one.const_value]
        steps = (scales[0].reshape(-1) * scales[1].reshape(-1) * factor).astype(scales[0].dtype)
        return self.real((value, self.plain(self.op.const(steps)), None))

    def matmul(self, x: ir.Value, weight: Triple, bias: ir.Value | None) -> None:
        """x·weight + bias takes the place of what the node made."""
        y = self.op.MatMul(x, self.real(weight, _last(weight[0])))
        self.finish(y if bias is None else self.op.Add(y, bias), None, None)

    def finish(self, y: ir.Value, scale: ir.Value | None, zero: ir.Value | None) -> None:
        """Let the result, rounded if it has a scale, take the place of what the node made."""
        if scale is not None:
            none = self.op.const(np.zeros((), np.uint8))
            zero = none if zero is None else self.plain(zero)
            y = self.op.QuantizeLinear(y, self.plain(scale), zero)
        self.graph.insert_before(self.node, self.op.nodes)
        take_over(self.node.outputs[0], y)
        self.graph.remove(self.node, safe=True)


def as_qdq(model: ir.Model) -> ir.Model:
    """Rewrite operators on whole numbers in a prepared model, in place; not those in bodies."""
    changed, graph = False, model.graph
    for node in list(graph):
        if node.graph is not None and (node.domain, node.op_type) in _REWRITES:
            changed |= _REWRITES[node.domain, node.op_type](_Around(node))
    if not changed:
        return model
    for node in reversed(list(graph)):
        if _is_left_over(node) and not any(is_used(value) for value in node.outputs):
            graph.remove(node, safe=True)
    return infer(model)


def _is_left_over(node: ir.Node) -> bool:
    """Whether a node made whole numbers, or real ones of a product of them."""
    whole = all(value.dtype in INTEGERS for value in node.outputs)
    return whole or (node.domain == ONNX and node.op_type in ("Cast", "Mul"))


def _size(value: ir.Value) -> int | None:
    if value.const_value is not None:
        return int(value.const_value.size)
    return 1 if value.shape is not None and len(value.shape) == 0 else None


def _moves(node: ir.Node) -> bool:
    """Whether a node only moves numbers; in a Pad of old opsets the fill is an attribute."""
    known = {*_MOVERS, _ALL_MOVED, *([_FILLED] if len(node.inputs) > 1 else [])}
    return node.domain == ONNX and node.op_type in known and len(node.outputs) == 1


def _scales_known(at: _Around, *indices: int) -> bool:
    """Whether scales are constants, those of data single numbers."""
    found = [at.triple(index)[0] for index in indices]
    return all(one is not None and one.const_value is not None for one in found)


def _conv(at: _Around) -> bool:
    if not _scales_known(at, 1, 4, 6):
        return False
    x, w, (scale, zero, _) = at.triple(0), at.triple(3), at.triple(6)
    assert x[1] is not None and w[1] is not None
    bias = at.bias(8, x[1], w[1])
    at.finish(at.op.Conv(at.real(x), at.real(w), bias, **forwarded(at.node)), scale, zero)
    return True


def _matmul(at: _Around) -> bool:
    a, b, (scale, zero, _) = at.triple(0), at.triple(3), at.triple(6)
    if not _scales_known(at, 1, 4, 6) or a[1] is None or _size(a[1]) != 1:
        return False
    at.finish(at.op.MatMul(at.real(a), at.real(b, _last(b[0]))), scale, zero)
    return True


def _last(value: ir.Value | None) -> int:
    return len(value.shape) - 1 if value is not None and value.shape is not None else 1


def _gemm(at: _Around) -> bool:
    a, b, (scale, zero, _) = at.triple(0), at.triple(3), at.triple(7)
    if not _scales_known(at, 1, 4) or a[1] is None or b[1] is None:
        return False
    options = {key: v for key, v in forwarded(at.node).items() if key in ("transA", "transB")}
    alpha = at.node.attributes.get_float("alpha", 1.0)
    bias = at.bias(6, a[1], b[1], alpha)
    axis = 0 if at.node.attributes.get_int("transB", 0) else 1
    y = at.op.Gemm(at.real(a), at.real(b, axis), bias, alpha=alpha, **options)
    at.finish(y, scale, zero)
    return True


def _binary(op_type: str) -> Callable[[_Around], bool]:
    def rewrite(at: _Around) -> bool:
        scale, zero, _ = at.triple(6)
        y = getattr(at.op, op_type)(at.real(at.triple(0)), at.real(at.triple(3)))
        at.finish(y, scale, zero)
        return True

    return rewrite


def _unary(op_type: str) -> Callable[[_Around], bool]:
    def rewrite(at: _Around) -> bool:
        options = forwarded(at.node)
        if options.pop("channels_last", None):
            return False
        scale, zero, _ = at.triple(3)
        at.finish(getattr(at.op, op_type)(at.real(at.triple(0)), **options), scale, zero)
        return True

    return rewrite


def _softmax(at: _Around) -> bool:
    """Along the last axis alone: along others it means different things in different opsets."""
    axis = at.node.attributes.get_int("axis", -1)
    if axis not in (-1, _last(at.triple(0)[0])):
        return False
    scale, zero, _ = at.triple(3)
    at.finish(at.op.Softmax(at.real(at.triple(0)), axis=axis), scale, zero)
    return True


def _concat(at: _Around) -> bool:
    parts = [at.real(at.triple(first)) for first in range(2, len(at.node.inputs), 3)]
    scale, zero, _ = at.triple(0)
    at.finish(at.op.Concat(*parts, **forwarded(at.node)), scale, zero)
    return True


def _undone(at: _Around) -> bool:
    """A DequantizeLinear behind operators that move whole numbers: they move real ones instead."""
    value, scale, _ = at.triple(0)
    before = None if value is None else value.producer()
    if before is None or not _moves(before) or scale is None or _size(scale) != 1:
        return False
    at.finish(at.real(at.triple(0)), None, None)
    return True


def _dynamic(at: _Around) -> bool:
    """A product of whole numbers, made real and scaled by the scales of both factors."""
    added = _only_user(at.node, "Add")
    cast = _only_user(added or at.node, "Cast")
    scaled = None if cast is None else _only_user(cast, "Mul")
    if cast is None or scaled is None:
        return False
    x, w, x_zero, w_zero = [*at.node.inputs, None, None][:4]
    assert x is not None and w is not None
    scales = _two_scales(scaled, cast.outputs[0])
    if scales is None or w.const_value is None:
        return False
    x_scale, w_scale = scales
    end = _Around(scaled)
    weight = end.real((w, w_scale, w_zero), 0 if at.node.op_type == "ConvInteger" else _last(w))
    data = end.real((x, x_scale, x_zero))
    if at.node.op_type == "ConvInteger":
        y = end.op.Conv(data, weight, **forwarded(at.node))
    else:
        y = end.op.MatMul(data, weight)
    if added is not None:
        steps = end.op.cast(_other(added, at.node.outputs[0]), y)
        y = end.op.Add(y, end.op.Mul(steps, _other(scaled, cast.outputs[0])))
    end.finish(y, None, None)
    return True


def _dynamic_matmul(at: _Around) -> bool:
    """A product of what is quantised on the way with a weight, and a bias of real numbers."""
    a, b, scale, zero, bias = [*at.node.inputs, None, None][:5]
    if a is None or b is None or scale is None or not _is_weight(b, scale) or at.op.opset < 11:
        return False
    parts = at.op.DynamicQuantizeLinear(a, _outputs=3)
    at.matmul(at.real((parts[0], parts[1], parts[2])), (b, scale, zero), bias)
    return True


def _scaled_matmul(at: _Around) -> bool:
    """The same of whole numbers; scales and zero points stand behind both factors."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = [*at.node.inputs, *[None] * 3][:7]
    if b is None or a_scale is None or b_scale is None or not _is_weight(b, b_scale):
        return False
    if _size(a_scale) != 1:
        return False
    at.matmul(at.real((a, a_scale, a_zero)), (b, b_scale, b_zero), bias)
    return True


def _is_weight(value: ir.Value, scale: ir.Value) -> bool:
    return value.const_value is not None and scale.const_value is not None


def _only_user(node: ir.Node, op_type: str) -> ir.Node | None:
    uses = list(node.outputs[0].uses())
    if len(uses) != 1 or node.outputs[0].is_graph_output():
        return None
    user = uses[0].node
    same = user.graph is node.graph
    return user if same and user.domain == ONNX and user.op_type == op_type else None


def _other(node: ir.Node, value: ir.Value) -> ir.Value:
    """The operand beside another one."""
    first, second = node.inputs
    found = second if first is value else first
    assert found is not None
    return found


def _two_scales(scaled: ir.Node, product: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """The scale of the data and the constant one of the weight."""
    both = _other(scaled, product).producer()
    if both is None or both.op_type != "Mul":
        return None
    constant = [v for v in both.inputs if v is not None and v.const_value is not None]
    computed = [v for v in both.inputs if v is not None and v.const_value is None]
    if len(constant) != 1 or len(computed) != 1 or _size(computed[0]) != 1:
        return None
    return computed[0], constant[0]


_REWRITES: dict[tuple[str, str], Callable[[_Around], bool]] = {
    (ONNX, "ConvInteger"): _dynamic,
    (ONNX, "DequantizeLinear"): _undone,
    (ONNX, "MatMulInteger"): _dynamic,
    (ONNX, "QLinearConv"): _conv,
    (ONNX, "QLinearMatMul"): _matmul,
    (MS, "DequantizeLinear"): _undone,
    (MS, "DynamicQuantizeMatMul"): _dynamic_matmul,
    (MS, "MatMulIntegerToFloat"): _scaled_matmul,
    (MS, "QGemm"): _gemm,
    (MS, "QLinearAdd"): _binary("Add"),
    (MS, "QLinearAveragePool"): _unary("AveragePool"),
    (MS, "QLinearConcat"): _concat,
    (MS, "QLinearGlobalAveragePool"): _unary("GlobalAveragePool"),
    (MS, "QLinearLeakyRelu"): _unary("LeakyRelu"),
    (MS, "QLinearMul"): _binary("Mul"),
    (MS, "QLinearSigmoid"): _unary("Sigmoid"),
    (MS, "QLinearSoftmax"): _softmax,
}
