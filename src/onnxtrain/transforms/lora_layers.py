"""The layers of a model that can take a low-rank adapter, and what one needs to know of each."""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxtrain.errors import ParameterError
from onnxtrain.graph.edit import fresh_name
from onnxtrain.transforms.weights.patterns import patterns_of
from onnxtrain.types import FLOATS, MS, ONNX, DataType, op_name

A_SUFFIX = ".lora_A"
B_SUFFIX = ".lora_B"


class Layout(enum.Enum):
    """How a layer multiplies by its weight."""

    RIGHT = "x·W"
    LEFT = "W·x"
    CONV = "convolution"


@dataclasses.dataclass(frozen=True)
class Operand:
    """A constant as a layer sees it, and the tensor of the file behind it.

    Attributes:
        base: The tensor of the file.
        shape: Shape that the layer sees.
        dtype: Element type that the layer sees.
        transposed: Whether the layer sees it transposed.
        quantised: Whether it is, or passes through, whole numbers.
    """

    base: ir.Value
    shape: tuple[int, ...]
    dtype: DataType
    transposed: bool = False
    quantised: bool = False


@dataclasses.dataclass(frozen=True)
class Site:
    """One node that can take an adapter.

    Attributes:
        node: The node.
        weight: Its weight; ``shape`` is [in, out], [out, in] or that of a kernel, by layout.
        layout: How it multiplies.
    """

    node: ir.Node
    weight: Operand
    layout: Layout

    @property
    def data(self) -> ir.Value:
        """The input that is not the weight."""
        value = self.node.inputs[1 if self.layout is Layout.LEFT else 0]
        assert value is not None
        return value

    @property
    def groups(self) -> int:
        """Groups of a convolution."""
        return self.node.attributes.get_int("group", 1)


@dataclasses.dataclass(frozen=True)
class Layer:
    """An adapter to be: one weight, and all nodes that use it in the same way.

    Attributes:
        name: What the names of its two tensors begin with.
        sites: The nodes.
        mergeable: Whether the product of the tensors can be added to the weight.
    """

    name: str
    sites: tuple[Site, ...]
    mergeable: bool

    @property
    def a(self) -> str:
        """Name of the tensor that the data meets first."""
        return f"{self.name}{A_SUFFIX}"

    @property
    def b(self) -> str:
        """Name of the tensor that the data meets second."""
        return f"{self.name}{B_SUFFIX}"

    @property
    def weight(self) -> Operand:
        """The weight that is adapted."""
        return self.sites[0].weight

    @property
    def layout(self) -> Layout:
        """How the weight is used."""
        return self.sites[0].layout

    def shapes(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of both tensors."""
        if self.layout is Layout.CONV:
            outs, ins, *kernel = self.weight.shape
            ones = (1,) * len(kernel)
            return (rank * self.sites[0].groups, ins, *kernel), (outs, rank, *ones)
        rows, columns = self.weight.shape
        if self.layout is Layout.LEFT:
            return (rank, columns), (rows, rank)
        return (rows, rank), (rank, columns)


def find_layers(model: ir.Model, targets: str | Sequence[str]) -> list[Layer]:
    """The layers whose node or weight has a name that one of the glob patterns matches.

    Raises:
        ParameterError: if a pattern matches no layer that can take an adapter.
    """
    patterns = patterns_of(targets, "targets of adapters are")
    if not patterns:
        raise ParameterError("no layer takes an adapter: the list of targets is empty")
    sites = [site for node in model.graph if (site := _site(node)) is not None]
    for pattern in patterns:
        if not any(_matches(site, pattern) for site in sites):
            raise ParameterError(_nothing_matches(pattern, sites))
    groups: dict[tuple[object, ...], list[Site]] = {}
    for site in sites:
        if any(_matches(site, pattern) for pattern in patterns):
            weight = site.weight
            key = (weight.base, weight.dtype, weight.transposed, site.layout, site.groups)
            groups.setdefault(key, []).append(site)
    taken: set[str] = set()
    return [_layer(group, taken) for group in groups.values()]


def _layer(sites: list[Site], taken: set[str]) -> Layer:
    """A layer with a name of its own; one weight may be used in two ways."""
    weight = sites[0].weight
    name = fresh_name(str(weight.base.name), taken)
    nodes = {site.node for site in sites}
    users = list(_users(weight.base))
    mergeable = not weight.quantised and all(user in nodes for user in users)
    return Layer(name, tuple(sites), mergeable and len(users) == len(sites))


def _users(value: ir.Value) -> Iterator[ir.Node | None]:
    """Who uses a constant at last, behind what only hands it on; None for the graph itself."""
    if value.is_graph_output():
        yield None
    for node, _ in value.uses():
        if node.domain == ONNX and node.op_type in ("Cast", "Identity", "Transpose"):
            yield from _users(node.outputs[0])
        else:
            yield node


def _matches(site: Site, pattern: str) -> bool:
    names = (str(site.node.name), str(site.weight.base.name))
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def _nothing_matches(pattern: str, sites: Sequence[Site]) -> str:
    shown = [
        f"\n  {op_name(s.node.domain, s.node.op_type)} '{s.node.name}' with weight "
        f"'{s.weight.base.name}'"
        for s in sites[:20]
    ]
    more = f"\n  and {len(sites) - 20} more" if len(sites) > 20 else ""
    return (
        f"no layer for an adapter matches '{pattern}'"
        + ("".join(shown) + more if sites else "\n  the model has no MatMul, Gemm or Conv of a")
        + ("" if sites else " constant weight")
    )


def _site(node: ir.Node) -> Site | None:
    if node.domain == MS and node.op_type in ("MatMulNBits", "MatMulBnb4"):
        return _quantised_site(node)
    if node.domain != ONNX:
        return None
    if node.op_type == "MatMul":
        return _matmul_site(node)
    if node.op_type == "Gemm":
        weight = _operand(node.inputs[1])
        if weight is None or len(weight.shape) != 2 or _operand(node.inputs[0]):
            return None
        if node.attributes.get_int("transB", 0):
            weight = _turned(weight)
        return Site(node, weight, Layout.RIGHT) if weight.dtype in FLOATS else None
    if node.op_type == "Conv":
        weight = _operand(node.inputs[1])
        usable = weight is not None and weight.dtype in FLOATS and len(weight.shape) > 2
        return Site(node, weight, Layout.CONV) if usable and weight is not None else None
    return None


def _matmul_site(node: ir.Node) -> Site | None:
    """x·W, or W·x; a product of two constants is none."""
    left, right = _operand(node.inputs[0]), _operand(node.inputs[1])
    weight = right or left
    if weight is None or (left and right) or len(weight.shape) != 2 or weight.dtype not in FLOATS:
        return None
    return Site(node, weight, Layout.RIGHT if right else Layout.LEFT)


def _quantised_site(node: ir.Node) -> Site | None:
    """Packed weights: their shape is in the attributes, their real type that of the scales."""
    base, scales = node.inputs[1], _operand(node.inputs[2])
    if base is None or scales is None or not node.attributes.get_int("transB", 1):
        return None
    shape = node.attributes["K"].as_int(), node.attributes["N"].as_int()
    return Site(node, Operand(base, shape, scales.dtype, quantised=True), Layout.RIGHT)


def _turned(weight: Operand) -> Operand:
    return dataclasses.replace(weight, shape=weight.shape[::-1], transposed=not weight.transposed)


def _operand(value: ir.Value | None) -> Operand | None:
    """The constant behind a value, None if it depends on what is fed."""
    if value is None:
        return None
    tensor = _tensor(value)
    if tensor is not None:
        whole = tensor.dtype not in FLOATS
        return Operand(value, tuple(tensor.shape.numpy()), tensor.dtype, quantised=whole)
    node = value.producer()
    inner = None if node is None or not node.inputs else _operand(node.inputs[0])
    if node is None or inner is None:
        return None
    if node.op_type == "QuantizeLinear" or node.op_type == "DequantizeLinear":
        scale = _operand(node.inputs[1])
        dtype = scale.dtype if scale and node.op_type == "DequantizeLinear" else inner.dtype
        return dataclasses.replace(inner, dtype=dtype, quantised=True)
    if node.domain != ONNX:
        return None
    if node.op_type == "Identity":
        return inner
    if node.op_type == "Cast":
        dtype = DataType(node.attributes["to"].as_int())
        return dataclasses.replace(
            inner, dtype=dtype, quantised=inner.quantised or dtype not in FLOATS
        )
    if node.op_type == "Transpose" and len(inner.shape) == 2:
        perm = node.attributes.get_ints("perm", [1, 0])
        return _turned(inner) if list(perm) == [1, 0] else inner
    return None


def _tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of an initializer or of a Constant node."""
    node = value.producer()
    if node is None:
        return value.const_value
    if node.domain == ONNX and node.op_type == "Constant" and "value" in node.attributes:
        return node.attributes["value"].as_tensor()
    return None
