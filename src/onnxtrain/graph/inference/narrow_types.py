"""bfloat16 in opsets whose operators list float16 alone: inferred as if it were that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from onnxtrain.graph import schemas
from onnxtrain.graph.bindings import paired
from onnxtrain.types import ONNX, DataType

LISTED, UNLISTED = "tensor(float16)", "tensor(bfloat16)"
CAST_SINCE = 13
"""The opset from which on Cast gives bfloat16."""


def as_listed(node: ir.Node, schema: onnx.defs.OpSchema) -> onnx.defs.OpSchema:
    """The schema to infer a node by: that of a Cast must list what it casts to."""
    if node.domain == ONNX and node.op_type == "Cast" and schema.since_version < CAST_SINCE:
        return schemas.get(ONNX, "Cast", CAST_SINCE) or schema
    return schema


def unlisted(schema: onnx.defs.OpSchema, node: ir.Node) -> frozenset[str]:
    """Type parameters of a schema that a node has bfloat16 for, where only float16 is listed."""
    types = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    narrow = {
        formal.type_str
        for formal, value in paired(schema.inputs, node.inputs)
        if value is not None and value.dtype == DataType.BFLOAT16
    }
    return frozenset(
        name
        for name in narrow & types.keys()
        if LISTED in types[name] and UNLISTED not in types[name]
    )


def stand_in(
    schema: onnx.defs.OpSchema,
    node: ir.Node,
    names: frozenset[str],
    types: Mapping[str, onnx.TypeProto],
) -> None:
    """Make inputs float16 that are passed for some type parameters."""
    for formal, value in paired(schema.inputs, node.inputs):
        if formal.type_str in names and value is not None:
            types[str(value.name)].tensor_type.elem_type = onnx.TensorProto.FLOAT16


def undo(
    schema: onnx.defs.OpSchema, names: frozenset[str], protos: Sequence[onnx.TypeProto | None]
) -> None:
    """Make outputs of these type parameters bfloat16 again, and sequences of such parts."""
    for formal, proto in paired(schema.outputs, protos):
        if proto is None or not names:
            continue
        if formal.type_str in names:
            proto.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
        elif proto.HasField("sequence_type"):
            part = proto.sequence_type.elem_type.tensor_type
            if part.elem_type == onnx.TensorProto.FLOAT16:
                part.elem_type = onnx.TensorProto.BFLOAT16
