"""Check a ModelProto and infer its types without touching its weights."""

from __future__ import annotations

import math

import onnx

SMALL = 256
"""Initializers of at most this many elements take part in inference with their value."""

_CONSTANTS_SINCE = 4
"""The first IR version whose initializers, which blocks add, need not be inputs too."""

_UNKNOWN = "expected to have type but instead is null"
"""What ONNX says of each node with an input whose type it did not find."""


def check(model: onnx.ModelProto) -> None:
    """Run ONNX's full checker, for models of any size and without a file.

    Of large initializers only type and shape are checked: writing gigabytes of weights that no
    block has touched into the checker's memory would take most of the time.

    Raises:
        onnx.checker.ValidationError: if the model breaks a rule of ONNX.
        onnx.shape_inference.InferenceError: if types or shapes contradict each other.
    """
    _register_schemas()
    onnx.checker.check_model(_without_weights(model), full_check=True)


def infer_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy of a model without its large initializers and with the types that ONNX infers."""
    _register_schemas()
    return onnx.shape_inference.infer_shapes(_without_weights(model))


def contradiction(model: onnx.ModelProto) -> str | None:
    """Why types or shapes of a model contradict each other; None if ONNX finds nothing.

    Types that ONNX does not find, as behind many operators of the first opsets, contradict nothing.
    """
    _register_schemas()
    try:
        onnx.shape_inference.infer_shapes(_without_weights(model), strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        told = str(error).strip()
        return None if all(_UNKNOWN in line for line in told.splitlines()) else told
    return None


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy in which large initializers are graph inputs, so that it is small and quick to check."""
    source = model.graph
    weights = {tensor.name: tensor for tensor in source.initializer if _is_weight(tensor)}
    inputs = {value.name for value in source.input}
    graph = onnx.helper.make_graph(
        source.node,
        source.name,
        [*source.input, *(describe(t) for name, t in weights.items() if name not in inputs)],
        source.output,
        [tensor for tensor in source.initializer if tensor.name not in weights],
        value_info=[value for value in source.value_info if value.name not in weights],
        sparse_initializer=source.sparse_initializer,
    )
    return onnx.helper.make_model(
        graph,
        ir_version=max(model.ir_version, _CONSTANTS_SINCE),
        opset_imports=model.opset_import,
        functions=model.functions,
    )


def _is_weight(tensor: onnx.TensorProto) -> bool:
    # Counted by its shape: protobuf would write the whole tensor to find its size in bytes.
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    return external or math.prod(tensor.dims) > SMALL


def describe(tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    """Type and shape of a tensor under its own name."""
    return onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))


def _register_schemas() -> None:
    # Imported here because the schemas of all training operators are not needed to name a block.
    from onnxtrain.graph import schemas

    schemas.ensure_registered()
