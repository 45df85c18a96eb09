"""The forward pass of a training graph: its nodes, what it makes, and what is needed later."""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from onnxtrain.graph.edit import reads
from onnxtrain.graph.lean import is_measure
from onnxtrain.transforms.backward.accumulation import HANDED_SUFFIX
from onnxtrain.transforms.precision_copies import COPY_SUFFIX
from onnxtrain.transforms.training_graph import BUFFER_SUFFIX, FLAG_SUFFIX
from onnxtrain.types import DataType

UNKNOWN_DIMENSION = 64
"""What stands for a dimension that is only known when the model runs: sizes are compared."""
SMALL = 256
"""Bytes up to which a value is kept, as shapes are."""


@dataclasses.dataclass
class Forward:
    """The forward pass.

    Attributes:
        graph: The training graph.
        nodes: Nodes on which outputs of the model depend, or what a YieldOp hands out, in order;
            those that measure sizes among them, too.
        later: All other nodes, in order.
        made: Values that the nodes make, by the place of their node.
        needed: Those of them that nodes of the backward pass read.
        outputs: Those of them that the model gives, and which are there to the end.
    """

    graph: ir.Graph
    nodes: list[ir.Node]
    later: list[ir.Node]
    made: dict[ir.Value, int]
    needed: set[ir.Value]
    outputs: set[ir.Value]

    @classmethod
    def of(cls, graph: ir.Graph) -> Forward:
        """Part a graph; what computes both a loss and its gradient belongs to the forward pass."""
        handed = [node for node in graph if node.op_type == "YieldOp"]
        roots = [value for value in graph.outputs if not _is_gradient(value)]
        found = _above([v for node in handed for v in node.inputs if v], set(handed))
        if not handed:
            found = _above(roots, set())
        found.update(_measures_among(list(graph), found))
        nodes = [node for node in graph if node in found]
        later = [node for node in graph if node not in found]
        made = {value: place for place, node in enumerate(nodes) for value in node.outputs}
        needed = {value for node in later for value in reads(node) if value in made}
        return cls(graph, nodes, later, made, needed, {v for v in graph.outputs if v in made})


def _above(roots: list[ir.Value], found: set[ir.Node]) -> set[ir.Node]:
    """The nodes that values are computed by, with those that are known."""
    waiting = [value.producer() for value in roots]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [value.producer() for value in reads(node)]
    return found


def _measures_among(order: list[ir.Node], found: set[ir.Node]) -> list[ir.Node]:
    """Nodes that measure, for the backward pass, what the forward pass has then: none keeps it."""
    last = max((place for place, node in enumerate(order) if node in found), default=0)
    return [node for node in order[:last] if is_measure(node)]


def _is_gradient(value: ir.Value) -> bool:
    return str(value.name).endswith((FLAG_SUFFIX, HANDED_SUFFIX))


def trained_inputs(graph: ir.Graph) -> list[str]:
    """Parameters whose gradients are added up, and copies of them."""
    names = [str(value.name) for value in graph.inputs]
    known = set(names)
    return [n for n in names if f"{n.removesuffix(COPY_SUFFIX)}{BUFFER_SUFFIX}" in known]


def bytes_of(value: ir.Value) -> int:
    """About how many bytes a value has; 0 if it is small, or its shape or type is not known.

    Bytes that a kernel hands to its gradient, in a form of its own, count as much as its largest
    result.
    """
    if value.shape is None and value.dtype == DataType.UINT8:
        maker = value.producer()
        return max(map(_bytes_told, () if maker is None else maker.outputs), default=0)
    return _bytes_told(value)


def _bytes_told(value: ir.Value) -> int:
    """About how many bytes a value has by its shape; 0 if it is small or has none."""
    if value.dtype is None or value.shape is None:
        return 0
    if isinstance(value.type, (ir.SequenceType, ir.OptionalType)):
        return 0
    dims = [dim if isinstance(dim, int) else UNKNOWN_DIMENSION for dim in value.shape]
    size = math.ceil(math.prod(dims) * value.dtype.itemsize)
    return size if size > SMALL else 0
