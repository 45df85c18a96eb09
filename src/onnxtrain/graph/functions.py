"""Functions in place of their calls: those of a model, and the bodies that schemas define.

Both go through the same inliner: the body of a schema becomes a function of the model first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import onnx
import onnx.inliner
import onnx.shape_inference
import onnx_ir as ir
import onnx_ir.passes.common as passes

from onnxtrain.errors import GraphError
from onnxtrain.graph import schemas
from onnxtrain.graph.bindings import opset_of
from onnxtrain.graph.inference.infer import infer
from onnxtrain.graph.tidy import tidy
from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import ONNX

DEEPEST = 16
"""Bodies may use operators that have bodies; no chain of them is this long."""


def inline_functions(model: ir.Model) -> None:
    """Replace every call of one of the model's functions by the nodes of its body, in place.

    Raises:
        GraphError: if a function calls itself, or is written in an opset that cannot be
            converted to the model's.
    """
    if not model.functions:
        return
    for function in model.functions.values():
        _separate_outputs(function, model.opset_imports)
        _all_outputs(function.all_nodes(), model.functions)
    _all_outputs(all_nodes(model.graph), model.functions)
    fits = [_take_opsets(function, model.opset_imports) for function in model.functions.values()]
    try:
        if all(fits):
            passes.InlinePass()(model)
        else:
            model.graph = _converted(model)
    except (ir.passes.InvariantError, RuntimeError, ValueError) as error:
        raise GraphError(f"cannot inline the functions of the model: {error}") from error
    model.functions.clear()


def _separate_outputs(function: ir.Function, imports: dict[str, int]) -> None:
    """Let a node make every output: what a call gives has a name of its own."""
    taken = set(function.inputs)
    for index, value in enumerate(function.outputs):
        if value in taken:
            copy = ir.node("Identity", [value])
            copy.outputs[0].name = f"{value.name}_{index}"
            function.append(copy)
            function.outputs[index] = copy.outputs[0]
            function.opset_imports.setdefault(ONNX, imports.get(ONNX, 1))
        taken.add(value)


def _all_outputs(
    nodes: Iterable[ir.Node], functions: Mapping[ir.OperatorIdentifier, ir.Function]
) -> None:
    """Give calls that leave out outputs of a function all of them, without a name so far."""
    for node in nodes:
        function = functions.get(node.op_identifier())
        if function is None:
            continue
        node.resize_outputs(max(len(node.outputs), len(function.outputs)))
        for value in node.outputs:
            value.name = value.name or None


def _converted(model: ir.Model) -> ir.Graph:
    """The main graph with functions inlined by ONNX, which converts them to the model's opset."""
    typed = onnx.shape_inference.infer_shapes(ir.to_proto(model))  # ONNX converts typed nodes only
    graph = ir.from_proto(onnx.inliner.inline_local_functions(typed, True)).graph
    for name, value in graph.initializers.items():
        if name in model.graph.initializers:
            value.const_value = model.graph.initializers[name].const_value
    return graph


def _take_opsets(function: ir.Function, wanted: dict[str, int]) -> bool:
    """Write a function's opset imports like the model's, if its nodes mean the same in both."""
    imports = dict(function.opset_imports)
    for node in function.all_nodes():
        own = opset_of(node, imports)
        other = opset_of(node, {**imports, **wanted})
        if own != other and _since(node, own) != _since(node, other):
            return False
    function.opset_imports.update({d: v for d, v in wanted.items() if d in imports})
    return True


def _since(node: ir.Node, version: int) -> int | None:
    schema = schemas.get(node.domain, node.op_type, version)
    return None if schema is None else int(schema.since_version)


def expand_functions(
    model: ir.Model,
    keep: Callable[[ir.Node], bool],
    among: Callable[[], Iterable[ir.Node]] | None = None,
) -> ir.Model:
    """Replace nodes by the bodies that their schemas define, in place.

    Args:
        model: A prepared model.
        keep: Whether a node can stay as it is, for instance because it has a kernel.
        among: Gives the nodes in question; all of the model's by default.
    """
    for _ in range(DEEPEST):
        nodes = all_nodes(model.graph) if among is None else among()
        replaced = [node for node in nodes if not keep(node)]
        bodies = [(node, body) for node in replaced if (body := _body(node, model)) is not None]
        if not bodies:
            break
        for index, (node, body) in enumerate(bodies):
            _make_call(node, body, model, f"body_{index}")
        inline_functions(model)
        tidy(model)
        infer(model)
    return model


def _body(node: ir.Node, model: ir.Model) -> onnx.FunctionProto | None:
    """The body that a node's schema defines for it, if there is one."""
    version = opset_of(node, model.opset_imports)
    schema: Any = schemas.get(node.domain, node.op_type, version)
    if schema is None:
        return None
    body = onnx.FunctionProto()
    if schema.has_function:
        newest = _newest(schema.function_opset_versions, version)
        body.ParseFromString(schema.get_function_with_opset_version(newest))
    elif schema.has_context_dependent_function:
        newest = _newest(schema.context_dependent_function_opset_versions, version)
        call = ir.serde.serialize_node(node).SerializeToString()
        built = schema.get_context_dependent_function_with_opset_version(newest, call, _types(node))
        body.ParseFromString(built)
    return body if body.node else None


def _newest(versions: Sequence[int], limit: int) -> int:
    return max((v for v in versions if v <= limit), default=max(versions))


def _types(node: ir.Node) -> list[bytes]:
    return [
        b"" if value is None else ir.serde.serialize_value(value).type.SerializeToString()
        for value in node.inputs
    ]


def _make_call(node: ir.Node, body: onnx.FunctionProto, model: ir.Model, overload: str) -> None:
    """Make a node the call of a function of the model, which has the body."""
    _define_outputs(body, len(node.outputs))
    body.domain, body.name, body.overload = node.domain, node.op_type, overload
    function = ir.serde.deserialize_function(body)
    model.functions[function.identifier()] = function
    node.overload = overload
    schema = schemas.get(node.domain, node.op_type, opset_of(node, model.opset_imports))
    assert schema is not None
    for name, declared in schema.attributes.items():
        if declared.default_value.name and name not in node.attributes:
            node.attributes.add(ir.serde.deserialize_attribute(declared.default_value))
    for attribute in list(node.attributes.values()):
        if attribute.type == ir.AttributeType.GRAPH:
            del node.attributes[attribute.name]
    for index, value in enumerate(node.outputs):
        value.name = value.name or f"{node.name}_{index}"


def _define_outputs(body: onnx.FunctionProto, count: int) -> None:
    """Cut a body to as many outputs as its call has; some bodies leave out what nobody reads."""
    del body.output[count:]
    defined = {name for node in body.node for name in node.output} | set(body.input)
    for name in body.output:
        if name not in defined:
            body.node.append(onnx.helper.make_node("Constant", [], [name], value_int=0))
