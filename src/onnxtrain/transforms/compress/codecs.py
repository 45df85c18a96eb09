"""Encoders and decoders around values."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.graph.phase import Phase, mark
from onnxtrain.transforms.compress.readers import Uses
from onnxtrain.types import BOOL, FLOATS, MS, OWN, DataType

WIDE = frozenset({DataType.FLOAT, DataType.DOUBLE})


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
    """Let the readers of the backward pass have a value decoded; whether that can be done.

    What is encoded is the value as it lies in memory, and so it lies again when it is decoded:
    gradients of images with their channels last would otherwise take several times as long.
    """
    if value.dtype not in codec.types:
        return False
    op = Ops(graph, f"{value.name}/")
    flat, axes = op.InMemoryOrder(value, _domain=OWN, _outputs=2)
    code = op.emit(f"{codec.name}Encoder", [_read(op, flat, codec)], _domain=MS)
    shape = op.shape(value)
    _call(op, flat=flat, axes=axes, code=code, **({} if shape.const_value else {"shape": shape}))
    _insert(graph, op, Phase.FORWARD, behind=uses.behind)
    decoded = op.emit(f"{codec.name}Decoder", [code], _domain=MS, to=value.dtype)
    assert flat.shape is not None, "it is a vector"
    if flat.shape.is_static():
        decoded.shape = flat.shape
    found = op.FromMemoryOrder(decoded, axes, shape, _domain=OWN)
    found.shape = value.shape
    _call(op, decoded=decoded, again=found)
    _insert(graph, op, Phase.BACKWARD, before=uses.first)
    for node, index in uses.later:
        node.replace_input_with(index, found)
    return True


def _read(op: Ops, flat: ir.Value, codec: Codec) -> ir.Value:
    """What is encoded; bits of numbers would not tell NaN, which passes a Relu, from zeros."""
    if codec is not BITS or flat.dtype == DataType.BOOL:
        return flat
    passes: ir.Value = op.Passes(flat, _domain=OWN)
    _call(op, passes=passes)
    return passes


def _call(op: Ops, **values: ir.Value) -> None:
    """Give values names that a reader of the plan understands."""
    for word, value in values.items():
        value.name = f"{op.prefix}{word}"


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
