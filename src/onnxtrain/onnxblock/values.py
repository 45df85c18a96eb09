"""Find the values of a ModelProto and their types."""

from __future__ import annotations

import onnx

from onnxtrain.errors import ModelError
from onnxtrain.onnxblock.check import describe, infer_types


def opset_of(model: onnx.ModelProto) -> int:
    """Version of ONNX's own operators that the model is written in."""
    versions = {opset.domain: int(opset.version) for opset in model.opset_import}
    return versions.get("", versions.get("ai.onnx", 1))


def need_opset(model: onnx.ModelProto, what: str, since: int) -> None:
    """Refuse to write something into a model whose opset has not all that it needs.

    Raises:
        ModelError: if the opset is too old.
    """
    if opset_of(model) < since:
        raise ModelError(
            f"{what} needs opset {since}, the model has {opset_of(model)}\n"
            f"  convert it with onnx.version_converter.convert_version(model, {since}), or export "
            "it anew with a later opset"
        )


def exists(model: onnx.ModelProto, name: str) -> bool:
    """Whether a value of that name is an input, an initializer or computed by a node."""
    graph = model.graph
    return (
        any(value.name == name for value in graph.input)
        or any(tensor.name == name for tensor in graph.initializer)
        or any(name in node.output for node in graph.node)
    )


def find_value(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto | None:
    """Type and shape of a value: as declared, else as inferred; none if it is not known."""
    declared = _declared(model, name)
    if declared is not None or not exists(model, name):
        return declared
    return _declared(infer_types(model), name)


def require_value(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    """Type and shape of a value.

    Raises:
        LookupError: if there is no such value or its type is not known.
    """
    value = find_value(model, name)
    if value is None:
        outputs = ", ".join(f"'{output.name}'" for output in model.graph.output)
        raise LookupError(
            f"no value '{name}' of a known type in graph '{model.graph.name}'\n"
            f"  its outputs are {outputs or 'not declared'}\n"
            "  name one of its values, or declare the type in graph.value_info"
        )
    return value


def element_type(model: onnx.ModelProto, name: str) -> int:
    """Element type of a tensor; float where nobody knows (the output of a custom operator)."""
    value = find_value(model, name)
    if value is None or not value.type.HasField("tensor_type"):
        return onnx.TensorProto.FLOAT
    return value.type.tensor_type.elem_type or onnx.TensorProto.FLOAT


def _declared(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto | None:
    graph = model.graph
    declared: list[onnx.ValueInfoProto] = [*graph.input, *graph.output, *graph.value_info]
    for value in declared:
        if value.name == name:
            return value
    for tensor in graph.initializer:
        if tensor.name == name:
            return describe(tensor)
    return None
