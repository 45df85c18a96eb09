"""Types and shapes of every value, through ONNX's inference with our operators registered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.graph import maps, schemas
from onnxtrain.graph.bindings import opset_of, paired
from onnxtrain.graph.declared import (
    contradicts,
    doubt_carried,
    forget_negative,
    free_sizes,
    is_computed,
    settle_carried,
    undeclare,
)
from onnxtrain.graph.ranks import complete_ranks
from onnxtrain.graph.typecheck import check_types
from onnxtrain.types import ONNX, parse_dtype

SMALL = 1024
"""Initializers of at most this many bytes keep their value during inference (shapes, axes)."""
_DOUBTED = "onnxtrain.doubted"
"""Set in a graph whose declared shapes have been looked at."""
KEEP_SHAPE = frozenset({"BatchNormalization", "Dropout", "GroupNormalization"})
"""Operators without inference in some opsets, whose first output is shaped like the first input."""


def infer(model: ir.Model) -> ir.Model:
    """Write types and shapes into the values of a model, in place.

    Raises:
        GraphError: if the model contradicts its operators' schemas.
    """
    schemas.ensure_registered()
    if not model.graph.meta.get(_DOUBTED):
        _doubt(model)
    _settle(model)
    check_types(model)
    return model


def _settle(model: ir.Model) -> None:
    """Infer until nothing is found any more."""
    _propagate(model)
    while _complete(model) or complete_ranks(model) or settle_carried(model):
        _propagate(model)


def _doubt(model: ir.Model) -> None:
    """Correct the shapes that a model declares where they cannot be right.

    A scalar that nothing confirms is not believed: some exporters write one for any shape.
    """
    forget_negative(model)
    symbols = free_sizes(model.graph)
    found = _inferred(model, declared=False)
    _settle(found)
    for graph, typed in zip(model.graphs(), found.graphs(), strict=True):
        doubt_carried(graph, typed)
        known = {v.name: v.shape for node in typed for v in node.outputs if v.shape is not None}
        for value in dict.fromkeys((*graph.outputs, *(v for node in graph for v in node.outputs))):
            shape = known.get(value.name)
            if value.shape is None:
                continue
            if shape is not None and contradicts(value.shape, shape, symbols):
                value.shape = shape.copy()
            elif shape is None and len(value.shape) == 0 and is_computed(value, model):
                value.shape = None
    model.graph.meta[_DOUBTED] = True


def _propagate(model: ir.Model) -> None:
    """Write what inference finds into the values of a model."""
    for graph, typed in zip(model.graphs(), _inferred(model).graphs(), strict=True):
        _merge(graph, typed)


def _inferred(model: ir.Model, declared: bool = True) -> ir.Model:
    """A copy of a model with types and shapes by ONNX's own inference.

    Args:
        model: The model.
        declared: Whether the shapes that its values have already are taken into account.
    """
    with _large_initializers_as_inputs(model.graph):
        proto = maps.written(model)
    if not declared:
        undeclare(proto.graph, model.graph.opset_imports)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError) as error:
        raise GraphError(f"types or shapes of the model do not fit: {error}") from error
    return maps.read(inferred)


def _complete(model: ir.Model) -> bool:
    """Type outputs that ONNX could not; whether there were any.

    Some schemas have no inference function. An output has the type of the inputs that share its
    type name, or the one type that the schema allows, and the operators in ``KEEP_SHAPE`` have the
    shape of their first input.
    """
    found = False
    for node in model.graph.all_nodes():
        version = opset_of(node, model.graph.opset_imports)
        schema = schemas.get(node.domain, node.op_type, version)
        if schema is None or all(value.type is not None for value in node.outputs):
            continue
        types = {f.type_str: v.type for f, v in paired(schema.inputs, node.inputs) if v is not None}
        for formal, value in paired(schema.outputs, node.outputs):
            type_ = types.get(formal.type_str) or _fixed_type(formal.type_str)
            if value.type is None and type_ is not None:
                value.type = type_
                found = True
        first = node.inputs[0] if node.inputs else None
        if first is not None and node.op_type in KEEP_SHAPE and node.outputs[0].shape is None:
            node.outputs[0].shape = first.shape
    return found


def _fixed_type(text: str) -> ir.TensorType | None:
    """The type that a schema writes out, None if it names a variable."""
    try:
        return ir.TensorType(parse_dtype(text)) if text.startswith("tensor(") else None
    except KeyError:
        return None


def declare_constant(value: ir.Value) -> None:
    """Write the type and shape of a constant into its value."""
    tensor = value.const_value
    if tensor is not None and value.type is None:
        value.type = ir.TensorType(tensor.dtype)
    if tensor is not None and value.shape is None:
        value.shape = ir.Shape(tensor.numpy().shape)


@contextmanager
def _large_initializers_as_inputs(graph: ir.Graph) -> Iterator[None]:
    """Leave big constants out of the copy that inference works on; their type is enough."""
    order = dict(graph.initializers)
    moved = [
        value
        for value in order.values()
        if value.const_value is not None
        and value.const_value.nbytes > SMALL
        and not value.is_graph_input()
    ]
    for value in moved:
        declare_constant(value)
        del graph.initializers[str(value.name)]
        graph.inputs.append(value)
    try:
        yield
    finally:
        for _ in moved:
            graph.inputs.pop()
        graph.initializers.clear()
        graph.initializers.update(order)


def _merge(graph: ir.Graph, typed: ir.Graph) -> None:
    """Copy what inference found onto the values of the same name."""
    known: dict[str, ir.Value] = {}
    for node in typed:
        known.update((v.name, v) for v in node.outputs if v.name)
    for value in [*graph.outputs, *(v for node in graph for v in node.outputs)]:
        found = known.get(value.name or "")
        if found is None:
            continue
        if found.type is not None:
            value.type = found.type
        if found.shape is not None and (value.shape is None or not _finer(value.shape, found)):
            value.shape = found.shape.copy()


def _finer(shape: ir.Shape, found: ir.Value) -> bool:
    """Whether the shape already known says more than the inferred one."""
    assert found.shape is not None
    if len(shape) != len(found.shape):
        return False
    return any(
        isinstance(new, ir.SymbolicDim) and new.value is None and isinstance(old, int)
        for old, new in zip(shape, found.shape, strict=True)
    )


def infer_node(node: ir.Node, imports: dict[str, int]) -> None:
    """Write types and shapes into the outputs of one node, as far as its inputs tell."""
    version = opset_of(node, imports)
    schema = schemas.get(node.domain, node.op_type, version)
    if schema is None:
        if node.domain == ONNX:
            raise GraphError(
                f"opset {version} has no operator {node.op_type}, which node '{node.name}' needs\n"
                "  convert the model to a newer opset"
            )
        return
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for value in node.inputs:
        if value is None:
            continue
        if value.type is None or value.name is None:
            return
        types[value.name] = ir.serde.serialize_value(value).type
        constant = value.const_value
        if constant is not None and constant.nbytes <= SMALL:
            data[value.name] = ir.serde.serialize_tensor(constant)
    try:
        found = onnx.shape_inference.infer_node_outputs(
            schema,
            ir.serde.serialize_node(node),
            types,
            data,
            opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in imports.items()],
        )
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError, KeyError) as error:
        raise GraphError(f"types or shapes of node '{node.name}' do not fit: {error}") from error
    for value in node.outputs:
        proto = found.get(value.name or "")
        if proto is not None:
            typed = ir.serde.deserialize_value_info_proto(
                onnx.ValueInfoProto(name=value.name, type=proto), None
            )
            value.type, value.shape = typed.type, typed.shape
