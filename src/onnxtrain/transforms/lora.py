"""Low-rank adapters: y = x·W + scale·(x·A)·B, of which only A and B are trained."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxtrain.errors import OptionError
from onnxtrain.graph.bindings import onnx_opset
from onnxtrain.graph.edit import collected_names, unique_name
from onnxtrain.transforms.lora_layers import Layer, Layout, Site

Array = npt.NDArray[Any]

_KERNEL_ATTRIBUTES = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_BROADCASTS_SINCE = 7
_RATIO_INPUT_SINCE = 12


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """How adapters are made.

    Attributes:
        rank: Columns of A and rows of B.
        alpha: What is added is multiplied by alpha / rank; None for a factor of 1.
        targets: Glob patterns over the names of nodes or weights of MatMul, Gemm, Conv,
            MatMulNBits and MatMulBnb4.
        dropout: Share of the data that does not pass an adapter in training.
    """

    rank: int = 8
    alpha: float | None = None
    targets: str | Sequence[str] = "*"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not _is(self.rank, Integral):
            raise OptionError(f"the rank of an adapter is a whole number, not {self.rank!r}")
        if self.rank < 1:
            raise OptionError(f"the rank of an adapter is at least 1, not {self.rank}")
        if self.rank >= 2**31:
            raise OptionError(f"the rank of an adapter is below 2**31, not {self.rank}")
        alpha = 1.0 if self.alpha is None else self.alpha
        if not _is(alpha, Real) or not (alpha and math.isfinite(alpha)):
            raise OptionError(f"the alpha of an adapter is a number and not 0, not {alpha!r}")
        if not _is(self.dropout, Real) or not 0 <= self.dropout < 1:
            raise OptionError(f"the dropout of an adapter is in [0, 1), not {self.dropout!r}")

    @property
    def scale(self) -> float:
        """What the product of A and B is multiplied by."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


def _is(given: object, kind: type) -> bool:
    """Whether something is a number of a kind; truth values are none."""
    return isinstance(given, kind) and not isinstance(given, bool)


def initial_values(layers: Sequence[Layer], rank: int, seed: int | None) -> dict[str, Array]:
    """A uniform in ±1/√(its inputs), B zero: adapters that change nothing yet."""
    rng = np.random.default_rng(seed)
    values: dict[str, Array] = {}
    for layer in layers:
        first, second = layer.shapes(rank)
        across = first[0] if layer.layout is Layout.RIGHT else math.prod(first[1:])
        bound = 1 / math.sqrt(max(across, 1))
        dtype = layer.weight.dtype.numpy()
        values[layer.a] = rng.uniform(-bound, bound, first).astype(dtype)
        values[layer.b] = np.zeros(second, dtype)
    return values


def attach(
    model: ir.Model,
    layers: Sequence[Layer],
    values: Mapping[str, Array],
    *,
    scale: float = 1.0,
    dropout: float = 0.0,
) -> None:
    """Add adapters to a model, in place; names of what it has stay as they are.

    Args:
        model: The model in which the layers were found.
        layers: Where adapters go.
        values: The tensors of the adapters by name.
        scale: What the product of A and B is multiplied by.
        dropout: Ratio of a Dropout, in inference form, before each A; 0 for none.
    """
    graph = model.graph
    with collected_names(graph):
        for layer in layers:
            a, b = (_initializer(graph, name, values[name]) for name in (layer.a, layer.b))
            for index, site in enumerate(layer.sites):
                prefix = layer.name if len(layer.sites) == 1 else f"{layer.name}.{index}"
                _Emitter(graph, site, f"{prefix}.lora").add(a, b, scale, dropout)


def delta(layer: Layer, a: Array, b: Array) -> Array:
    """What a weight changes by, in the weight's own shape and in float64."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    if layer.layout is Layout.CONV:
        groups = layer.sites[0].groups
        rank, outs = a.shape[0] // groups, b.shape[0]
        product = b.reshape(groups, outs // groups, rank) @ a.reshape(groups, rank, -1)
        return product.reshape(layer.weight.shape)
    product = b @ a if layer.layout is Layout.LEFT else a @ b
    return product.T if layer.weight.transposed else product


def _initializer(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(array.shape),
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value


class _Emitter:
    """Puts the nodes of an adapter behind one node, whose output's name goes to their sum."""

    def __init__(self, graph: ir.Graph, site: Site, prefix: str) -> None:
        self._graph = graph
        self._site = site
        self._prefix = prefix
        self._last = site.node
        self._opset = onnx_opset(graph.opset_imports)

    def add(self, a: ir.Value, b: ir.Value, scale: float, dropout: float) -> None:
        """y becomes y + scale·(x through A and B)."""
        site = self._site
        x = site.data
        if dropout:
            x = self._dropout(x, dropout)
        if site.layout is Layout.CONV:
            low, up = self._conv(x, a), self._conv_up
        elif site.layout is Layout.LEFT:
            low, up = self._node("MatMul", a, x, name="A"), self._left_up
        else:
            if site.node.op_type == "Gemm" and site.node.attributes.get_int("transA", 0) == 1:
                x = self._node("Transpose", x, name="turned", perm=[1, 0])
            low, up = self._node("MatMul", x, a, name="A"), self._right_up
        if site.node.op_type == "Gemm":
            scale *= site.node.attributes.get_float("alpha", 1.0)
        if scale != 1.0:
            low = self._times(low, scale)
        self._sum(up(low, b))

    def _conv(self, x: ir.Value, a: ir.Value) -> ir.Value:
        given = self._site.node.attributes
        copied = {key: given[key] for key in _KERNEL_ATTRIBUTES if key in given}
        return self._node("Conv", x, a, name="A", **copied)

    def _conv_up(self, low: ir.Value, b: ir.Value) -> ir.Value:
        return self._node("Conv", low, b, name="B", group=self._site.groups)

    def _left_up(self, low: ir.Value, b: ir.Value) -> ir.Value:
        return self._node("MatMul", b, low, name="B")

    def _right_up(self, low: ir.Value, b: ir.Value) -> ir.Value:
        return self._node("MatMul", low, b, name="B")

    def _dropout(self, x: ir.Value, ratio: float) -> ir.Value:
        if self._opset < _RATIO_INPUT_SINCE:
            return self._node("Dropout", x, name="dropped", ratio=ratio)
        return self._node("Dropout", x, self._constant("ratio", np.float32(ratio)), name="dropped")

    def _times(self, low: ir.Value, scale: float) -> ir.Value:
        factor = self._constant("scale", np.asarray(scale, self._site.weight.dtype.numpy()))
        if self._opset < _BROADCASTS_SINCE:
            return self._node("Mul", low, factor, name="scaled", broadcast=1)
        return self._node("Mul", low, factor, name="scaled")

    def _constant(self, name: str, array: Any) -> ir.Value:
        full = unique_name(self._graph, f"{self._prefix}.{name}")
        return _initializer(self._graph, full, np.asarray(array))

    def _node(self, op_type: str, *inputs: ir.Value, name: str, **attributes: Any) -> ir.Value:
        full = f"{self._prefix}.{name}"
        node = ir.node(op_type, list(inputs), attributes, name=full)
        node.outputs[0].name = unique_name(self._graph, f"{full}_out")
        self._graph.insert_after(self._last, node)
        self._last = node
        return node.outputs[0]

    def _sum(self, added: ir.Value) -> None:
        """Let the sum stand for the node's output everywhere, under its name."""
        old = self._site.node.outputs[0]
        new = self._node("Add", added, added, name="sum")
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        name = old.name
        old.name = unique_name(self._graph, f"{self._prefix}.base_out")
        new.name, new.type, new.shape = name, old.type, old.shape
        node = new.producer()
        assert node is not None
        node.replace_input_with(0, old)


def attach_overridable(model: ir.Model, layers: Sequence[Layer]) -> None:
    """Add adapters whose tensors may be fed, at any rank; unfed they change nothing, in place."""
    for layer in layers:
        dtype, names = layer.weight.dtype.numpy(), (layer.a, layer.b)
        sizes = list(zip(names, layer.shapes(1), layer.shapes(2), strict=True))
        attach(model, [layer], {name: np.zeros(one, dtype) for name, one, _ in sizes})
        for name, one, two in sizes:
            value = model.graph.initializers[name]
            free = [n if n == m else f"{name}_rank" for n, m in zip(one, two, strict=True)]
            value.shape = ir.Shape(free)
            model.graph.inputs.append(value)
