"""Types and shapes of every value, through ONNX's inference with our operators registered."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import onnx
import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.graph import maps, schemas
from onnxtrain.graph.bindings import kind, opset_of, paired
from onnxtrain.graph.inference.attention import is_unsized, result_shapes
from onnxtrain.graph.inference.declared import (
    believe,
    believe_weights,
    forget_meaningless,
    settle_carried,
    undeclare,
)
from onnxtrain.graph.inference.einsum import is_einsum, result_shape
from onnxtrain.graph.inference.narrow_types import as_listed, stand_in, undo, unlisted
from onnxtrain.graph.inference.orders import renewed, turn
from onnxtrain.graph.inference.pools import counting
from onnxtrain.graph.inference.ranks import complete_ranks
from onnxtrain.graph.inference.recount import recount
from onnxtrain.graph.inference.reshaped import complete_reshapes
from onnxtrain.graph.inference.scans import shape_slices
from onnxtrain.graph.inference.skeleton import SMALL, skeleton
from onnxtrain.graph.inference.split_sizes import give_sizes
from onnxtrain.graph.inference.transposed import padded
from onnxtrain.graph.inference.unfit import check_shapes
from onnxtrain.graph.inference.windows import without_windows
from onnxtrain.graph.typecheck import check_types
from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import ONNX, parse_dtype

_FOUND = "onnxtrain.found"
"""Where a graph keeps the types and shapes of the inputs that its values were inferred from."""
MOST_RESULTS = 10_000
"""How many results of inferring single nodes are kept: layers of a model are mostly alike."""
KEEP_SHAPE = frozenset({"BatchNormalization", "Dropout", "GroupNormalization"})
"""Operators without inference in some opsets, whose first output is shaped like the first input."""
_DO_NOT_FIT = (
    onnx.shape_inference.InferenceError,
    onnx.checker.ValidationError,
    RuntimeError,
    ValueError,
    KeyError,
)
"""What ONNX raises if a node contradicts its schema."""

Typed = tuple[ir.TypeProtocol | None, ir.Shape | None]
_results: dict[Hashable, list[Typed | None]] = {}


def infer(model: ir.Model) -> ir.Model:
    """Write types and shapes into the values of a model, in place.

    Raises:
        GraphError: if the model contradicts its operators' schemas.
    """
    find_types(model)
    check_types(model)
    return model


def find_types(model: ir.Model) -> None:
    """Like ``infer``, for models whose nodes are known to agree with their schemas."""
    schemas.ensure_registered()
    given = _given(model.graph)
    before = model.graph.meta.get(_FOUND)
    if before is None:
        _doubt(model)
    elif not _agrees(before, given) or not _completed(model):
        _settle(model)
    model.graph.meta[_FOUND] = given


def _given(graph: ir.Graph) -> dict[str, Hashable]:
    """Types and shapes of the inputs of a graph."""
    return {str(v.name): (kind(v), None if v.shape is None else v.shape.dims) for v in graph.inputs}


def _agrees(before: Mapping[str, Hashable], now: Mapping[str, Hashable]) -> bool:
    """Whether inputs that were there before are still what they were."""
    return all(name not in before or before[name] == one for name, one in now.items())


def _completed(model: ir.Model) -> bool:
    """Infer the nodes that were added to an inferred graph one by one; whether that was enough."""
    for node in all_nodes(model.graph):
        if not any([_is_open(value) for value in node.outputs]):
            continue
        known = [value for value in node.outputs if not _is_open(value)]
        before = [(value, value.type, value.shape) for value in known]
        try:
            infer_node(node, model.graph.opset_imports)
        except GraphError:
            return False
        for value, type_, shape in before:
            value.type, value.shape = type_, shape
        if any(_is_open(value) for value in node.outputs):
            return False
    return True


def _is_open(value: ir.Value) -> bool:
    """Whether the type or the shape of a value is not known."""
    if not value.name:
        return False
    return value.type is None or (value.shape is None and isinstance(value.type, ir.TensorType))


def _settle(model: ir.Model) -> None:
    """Infer until nothing is found any more."""
    _propagate(model)
    while _complete(model) or complete_ranks(model) or shape_slices(model) or settle_carried(model):
        _propagate(model)
    recount(model, infer_node)
    complete_reshapes(model, infer_node)


def _doubt(model: ir.Model) -> None:
    """Infer without the shapes that a model declares, and again with those that are news.

    Raises:
        GraphError: if shapes that follow from the inputs contradict each other.
    """
    forget_meaningless(model)
    believe_weights(model)
    declared = undeclare(model)
    _settle(model)
    check_shapes(model)
    if believe(model, declared):
        _settle(model)
        believe(model, declared)  # a Loop whose shapes were corrected made all others be forgotten


def _propagate(model: ir.Model) -> None:
    """Write what ONNX's own inference finds into the values of a model."""
    try:
        inferred = onnx.shape_inference.infer_shapes(skeleton(model), data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError) as error:
        raise GraphError(f"types or shapes of the model do not fit: {error}") from error
    _Merge().graph(model.graph, inferred.graph)


def _complete(model: ir.Model) -> bool:
    """Type outputs that ONNX could not; whether there were any.

    Some schemas have no inference function. An output has the type of the inputs that share its
    type name, or the one type that the schema allows, and the operators in ``KEEP_SHAPE`` have the
    shape of their first input.
    """
    found = False
    for node in all_nodes(model.graph):
        if all(value.type is not None for value in node.outputs):
            continue
        version = opset_of(node, model.graph.opset_imports)
        schema = schemas.get(node.domain, node.op_type, version)
        if schema is None:
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


class _Merge:
    """Copies what inference found onto the values of the same name; equal types are read once."""

    def __init__(self) -> None:
        self._read: dict[bytes, Typed] = {}

    def graph(self, graph: ir.Graph, typed: onnx.GraphProto) -> None:
        """Merge a graph and the bodies of its nodes."""
        known = {info.name: info.type for info in (*typed.value_info, *typed.output)}
        for value in graph.outputs:
            self._value(value, known)
        for node, found in zip(graph, typed.node, strict=True):
            for value in node.outputs:
                self._value(value, known)
            if any(a.type == ir.AttributeType.GRAPH for a in node.attributes.values()):
                for attribute in found.attribute:
                    if attribute.type == onnx.AttributeProto.GRAPH:
                        self.graph(node.attributes[attribute.name].as_graph(), attribute.g)

    def _value(self, value: ir.Value, known: Mapping[str, onnx.TypeProto]) -> None:
        proto = known.get(value.name or "")
        if proto is None:
            return
        type_, shape = self._typed(proto)
        value.type = type_ or value.type
        if shape is not None and (value.shape is None or not _finer(value.shape, shape)):
            value.shape = shape

    def _typed(self, proto: onnx.TypeProto) -> Typed:
        key = proto.SerializeToString()
        if key not in self._read:
            self._read[key] = _frozen(proto)
        return self._read[key]


def _finer(shape: ir.Shape, found: ir.Shape) -> bool:
    """Whether the shape already known says more than the inferred one."""
    if len(shape) != len(found):
        return False
    return any(
        isinstance(new, ir.SymbolicDim) and new.value is None and isinstance(old, int)
        for old, new in zip(shape, found, strict=True)
    )


def infer_node(node: ir.Node, imports: dict[str, int]) -> None:
    """Write types and shapes into the outputs of one node, as far as its inputs tell."""
    if any([v is not None and (v.type is None or v.name is None) for v in node.inputs]):
        _schema_of(node, imports)
        return
    key = _key(node, imports)
    if key is None or key not in _results:
        found = _inferred_outputs(node, imports)
        if key is None or found is None:
            _write(node, found or [])
            return
        if len(_results) > MOST_RESULTS:
            _results.clear()
        _results[key] = found
    _write(node, _results[key])


def _write(node: ir.Node, found: Sequence[Typed | None]) -> None:
    for value, typed in zip(node.outputs, found, strict=False):
        if typed is not None:
            value.type, value.shape = typed


def _schema_of(node: ir.Node, imports: dict[str, int]) -> onnx.defs.OpSchema | None:
    """The schema of a node; None if it is of a domain that has none for it."""
    version = opset_of(node, imports)
    schema = schemas.get(node.domain, node.op_type, version)
    if schema is None and node.domain == ONNX:
        raise GraphError(
            f"opset {version} has no operator {node.op_type}, which node '{node.name}' needs\n"
            "  convert the model to a newer opset"
        )
    return schema


def _key(node: ir.Node, imports: dict[str, int]) -> Hashable | None:
    """All that the result of inferring a node depends on; None if that cannot be compared."""
    attributes = []
    for attribute in node.attributes.data.values():
        value = attribute.value
        if not isinstance(value, (int, float, str, tuple)):
            return None
        attributes.append((attribute.name, attribute.type, value))
    given = tuple([None if value is None else _given_by(value) for value in node.inputs])
    named = tuple([bool(value.name) for value in node.outputs])
    opsets = tuple(imports.items())
    return (node.domain, node.op_type, node.version, opsets, tuple(attributes), given, named)


def _given_by(value: ir.Value) -> Hashable:
    """Type, shape and, if it is a small constant, content of a value."""
    data, shape = value.const_value, value.shape
    content = None if data is None or data.nbytes > SMALL else (data.shape.numpy(), data.tobytes())
    sizes = None if shape is None else [d if isinstance(d, int) else d.value for d in shape]
    return (kind(value), None if sizes is None else tuple(sizes), content)


def _inferred_outputs(node: ir.Node, imports: dict[str, int]) -> list[Typed | None] | None:
    """Types and shapes of a node's outputs by ONNX's own inference; None without a schema."""
    imports = renewed(node, counting(node, imports))
    schema = _schema_of(node, imports)
    if schema is None:
        return None
    if is_einsum(node):
        return _broadcast(node)
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for value in node.inputs:
        if value is not None:
            types[str(value.name)] = ir.serde.serialize_value(value).type
            constant = value.const_value
            if constant is not None and constant.nbytes <= SMALL:
                data[str(value.name)] = ir.serde.serialize_tensor(constant)
    schema = as_listed(node, schema)
    narrow = unlisted(schema, node)
    stand_in(schema, node, narrow, types)
    proto = padded(node)
    without_windows(node, proto)
    turn(node, proto, types, data)
    give_sizes(node, proto, types, data)
    try:
        found = onnx.shape_inference.infer_node_outputs(
            schema,
            proto,
            types,
            data,
            opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in imports.items()],
        )
    except _DO_NOT_FIT as error:
        raise GraphError(f"types or shapes of node '{node.name}' do not fit: {error}") from error
    protos = [found.get(value.name or "") for value in node.outputs]
    undo(schema, narrow, protos)
    read = [None if proto is None else _frozen(proto) for proto in protos]
    return _sized(node, read) if is_unsized(node) else read


def _sized(node: ir.Node, found: Sequence[Typed | None]) -> list[Typed | None]:
    """The types that were found for an Attention, and its true shapes."""
    shapes = result_shapes(node)
    for shape in shapes:
        if shape is not None:
            shape.freeze()
    pairs = zip(found, shapes, strict=False)
    return [None if one is None else (one[0], shape) for one, shape in pairs]


def _broadcast(node: ir.Node) -> list[Typed | None]:
    """The type of an Einsum's operands, and the shape that they broadcast to."""
    shape = result_shape(node)
    if shape is not None:
        shape.freeze()
    return [None if value is None else (value.type, shape) for value in node.inputs[:1]]


def _frozen(proto: onnx.TypeProto) -> Typed:
    """A type and a shape that several values may have."""
    type_, shape = maps.type_and_shape(proto)
    if shape is not None:
        shape.freeze()
    return type_, shape
