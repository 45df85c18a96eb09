"""Encoders and decoders around values."""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.graph.phase import Phase, mark
from onnxtrain.transforms.compress.readers import Uses
from onnxtrain.types import BOOL, FLOATS, MS, DataType

WIDE = frozenset({DataType.FLOAT, DataType.DOUBLE})
SLICES_BY_INPUTS = 10
"""The opset from which on Slice takes places that are computed."""


@dataclasses.dataclass(frozen=True)
class Codec:
    """A pair of operators.

    Attributes:
        name: What both of their names begin with.
        types: What can be encoded.
    """

    name: str
    types: frozenset[DataType]


BITS = Codec("GistPack1", FLOATS | BOOL)
EXACT = "exact"
CODECS = {
    EXACT: None,
    "pack16": Codec("GistPack16", WIDE),
    "msfp15": Codec("GistPackMsfp15", FLOATS),
    "pack8": Codec("GistPack8", FLOATS),
}
"""By what users call them; truth values and signs are packed with all of them."""


def coded(graph: ir.Graph, value: ir.Value, uses: Uses, codec: Codec) -> bool:
    """Let the readers of the backward pass have a value decoded; whether that can be done."""
    if value.dtype not in codec.types:
        return False
    op = Ops(graph, f"{value.name}/")
    if codec is BITS and not _has_known_size(value) and op.opset < SLICES_BY_INPUTS:
        return False
    code = op.emit(f"{codec.name}Encoder", [value], _domain=MS)
    sizes = _sizes(op, value) if codec is BITS and not _has_known_size(value) else None
    _insert(graph, op, Phase.FORWARD, behind=uses.behind)
    decoded = op.emit(f"{codec.name}Decoder", [code], _domain=MS, to=value.dtype)
    if sizes is not None:
        shape, end = sizes
        decoded = op.reshape_exactly(op.Slice(decoded, op.ints([0]), end), shape)
    decoded.shape = value.shape
    _insert(graph, op, Phase.BACKWARD, before=uses.first)
    for node, index in uses.later:
        node.replace_input_with(index, decoded)
    return True


def _has_known_size(value: ir.Value) -> bool:
    """Whether bits say how many elements there were: all sizes are known, or whole bytes."""
    assert value.shape is not None
    known = [dim for dim in value.shape if isinstance(dim, int)]
    missing = len(value.shape) - len(known)
    return not missing or (missing == 1 and math.prod(known) % 8 == 0 and 0 not in known)


def _sizes(op: Ops, value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The shape of a value, and how many elements it has, as a vector of one."""
    return op.Shape(value), op.Reshape(op.Size(value), op.ints([1]))


def _insert(
    graph: ir.Graph,
    op: Ops,
    phase: Phase,
    behind: ir.Node | None = None,
    before: ir.Node | None = None,
) -> None:
    """Put what was emitted into the graph."""
    for node in op.nodes:
        mark(node, phase)
    if behind is not None:
        graph.insert_after(behind, op.nodes)
    elif before is not None:
        graph.insert_before(before, op.nodes)
    op.nodes.clear()
