"""What a node's schema says about its concrete types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import onnx
import onnx_ir as ir

from onnxtrain.graph import schemas
from onnxtrain.types import DataType


def opset_of(node: ir.Node, imports: dict[str, int]) -> int:
    """Opset version that a node is written in."""
    if node.version is not None:
        return node.version
    return imports.get(node.domain, imports.get("ai.onnx", 1) if node.domain == "" else 1)


def bound_types(node: ir.Node, version: int) -> dict[str, DataType | None]:
    """Element types by the schema's type names (``T``, ``Tind``); empty without a schema."""
    schema = schemas.get(node.domain, node.op_type, version)
    if schema is None:
        return {}
    types: dict[str, DataType | None] = {}
    for formal, value in [
        *paired(schema.inputs, node.inputs),
        *paired(schema.outputs, node.outputs),
    ]:
        if types.get(formal.type_str) is None:
            types[formal.type_str] = None if value is None else value.dtype
    return types


Formal = onnx.defs.OpSchema.FormalParameter
_Value = TypeVar("_Value", bound=ir.Value | None)


def paired(formals: Sequence[Formal], values: Sequence[_Value]) -> Iterator[tuple[Formal, _Value]]:
    """Each value with the formal parameter it is passed for, unless its type is free."""
    if not formals:
        return
    for index, value in enumerate(values):
        formal = formals[min(index, len(formals) - 1)]
        if formal.is_homogeneous:
            yield formal, value


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
