"""What a node's schema says about its concrete types."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import onnx
import onnx_ir as ir

from onnxtrain.graph import schemas
from onnxtrain.types import ONNX, DataType


def onnx_opset(imports: Mapping[str, int], default: int = 1) -> int:
    """Version of ONNX's own operators, whose domain is written in two ways."""
    return imports.get(ONNX, imports.get("ai.onnx", default))


def opset_of(node: ir.Node, imports: Mapping[str, int]) -> int:
    """Opset version that a node is written in."""
    if node.version is not None:
        return node.version
    return onnx_opset(imports) if node.domain == ONNX else imports.get(node.domain, 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Formal:
    """A formal parameter of a schema; ``is_homogeneous`` says that values passed for it agree."""

    name: str
    type_str: str
    is_homogeneous: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """What a schema says about inputs and outputs, read once: asking a schema takes long.

    Attributes:
        inputs: Formal parameters for the inputs.
        outputs: Formal parameters for the outputs.
        input_counts: How many inputs there are at least and at most.
        output_counts: How many outputs there are at least and at most.
        variables: Names that stand for one of several types.
    """

    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    input_counts: tuple[int, int]
    output_counts: tuple[int, int]
    variables: frozenset[str]


_signatures: dict[tuple[str, str, int], Signature] = {}


def signature(node: ir.Node, version: int) -> Signature | None:
    """What the schema of a node says, or None if it has none."""
    key = (node.domain, node.op_type, version)
    if key not in _signatures:
        schema = schemas.get(*key)
        if schema is None:
            return None
        _signatures[key] = Signature(
            tuple(Formal(f.name, f.type_str, f.is_homogeneous) for f in schema.inputs),
            tuple(Formal(f.name, f.type_str, f.is_homogeneous) for f in schema.outputs),
            (schema.min_input, schema.max_input),
            (schema.min_output, schema.max_output),
            frozenset(c.type_param_str for c in schema.type_constraints),
        )
    return _signatures[key]


Kind = DataType | ir.TypeProtocol | None
"""The type of a value; that of a tensor is its element type alone, which compares faster."""


def kinds(node: ir.Node) -> tuple[tuple[Kind, ...], tuple[Kind, ...]]:
    """The types of a node's inputs and outputs; None where none is known or nothing is passed."""
    read = tuple([None if value is None else kind(value) for value in node.inputs])
    return read, tuple([kind(value) for value in node.outputs])


def kind(value: ir.Value) -> Kind:
    """The type of a value."""
    type_ = value.type
    return type_.dtype if type(type_) is ir.TensorType else type_


def bound_types(node: ir.Node, version: int) -> dict[str, DataType | None]:
    """Element types by the schema's type names (``T``, ``Tind``); empty without a schema."""
    known = signature(node, version)
    if known is None:
        return {}
    types: dict[str, DataType | None] = {}
    for formals, values in ((known.inputs, node.inputs), (known.outputs, node.outputs)):
        for formal, value in paired(formals, values):
            if types.get(formal.type_str) is None:
                types[formal.type_str] = None if value is None else value.dtype
    return types


_Formal = TypeVar("_Formal", Formal, onnx.defs.OpSchema.FormalParameter)
_Value = TypeVar("_Value", bound=ir.Value | None)


def paired(
    formals: Sequence[_Formal], values: Sequence[_Value]
) -> Iterator[tuple[_Formal, _Value]]:
    """Each value with the formal parameter it is passed for, unless its type is free."""
    last = len(formals) - 1
    if last < 0:
        return
    for index, value in enumerate(values):
        formal = formals[index if index < last else last]
        if formal.is_homogeneous:
            yield formal, value


def dimensions(shape: ir.ShapeProtocol | None) -> tuple[int | None, ...] | None:
    """Sizes of a shape, None for those that are free; None if it is not known at all."""
    if shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else None for dim in shape)


def same_shape(a: ir.Value | None, b: ir.Value | None) -> bool:
    """Whether two values certainly have the same shape (equal numbers or equal symbols)."""
    if a is None or b is None or a.shape is None or b.shape is None:
        return False
    if len(a.shape) != len(b.shape):
        return False
    return all(same_dim(x, y) for x, y in zip(a.shape, b.shape, strict=True))


def same_dim(a: int | ir.SymbolicDim, b: int | ir.SymbolicDim) -> bool:
    """Whether two dimensions are certainly equal."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return a.value is not None and a.value == b.value
