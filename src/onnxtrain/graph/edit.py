"""Changes to a graph, each small and safe."""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx
import onnx_ir as ir

from onnxtrain.graph import schemas
from onnxtrain.types import ONNX


def unique_name(graph: ir.Graph, wanted: str) -> str:
    """A value name that the graph does not use yet."""
    taken = value_names(graph)
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    return name


def value_names(graph: ir.Graph) -> set[str]:
    """Every value name of a graph and its subgraphs."""
    names = {value.name for value in graph.inputs} | set(graph.initializers)
    for node in graph.all_nodes():
        names |= {value.name for value in node.outputs}
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                inner = attribute.as_graph()
                names |= {v.name for v in inner.inputs} | set(inner.initializers)
    return {name for name in names if name}


def is_used(value: ir.Value) -> bool:
    """Whether some node reads the value or the graph returns it."""
    return bool(value.uses()) or value.is_graph_output()


def remove_dead(graph: ir.Graph, keep: Callable[[ir.Node], bool] = lambda node: False) -> None:
    """Remove nodes whose outputs nobody uses, and initializers that nobody reads."""
    for node in reversed(list(graph)):
        if not keep(node) and not any(is_used(value) for value in node.outputs):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not is_used(value) and not value.is_graph_input():
            del graph.initializers[name]


def blank_unused_outputs(node: ir.Node, keep: Collection[ir.Value] = ()) -> None:
    """Leave unused outputs of a node unnamed, so that a kernel need not compute them.

    A node with a list of outputs keeps them all: their number has a meaning (Split).
    """
    if _has_output_list(node):
        return
    unused = [value for value in node.outputs if not is_used(value) and value not in keep]
    for value in unused:
        value.name = ""
    while len(node.outputs) > 1 and node.outputs[-1] in unused:
        node.resize_outputs(len(node.outputs) - 1)


def _has_output_list(node: ir.Node) -> bool:
    newest = onnx.defs.onnx_opset_version() if node.domain == ONNX else 1
    schema = schemas.get(node.domain, node.op_type, node.version or newest)
    formals = () if schema is None else schema.outputs
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return any(formal.option == variadic for formal in formals)


def extra_output(node: ir.Node, index: int, name: str, like: ir.Value | None = None) -> ir.Value:
    """Output ``index`` of a node, named (and typed like another value) if it was missing."""
    assert node.graph is not None
    if len(node.outputs) <= index:
        first = len(node.outputs)
        node.resize_outputs(index + 1)
        for value in node.outputs[first:index]:
            value.name = ""
    value = node.outputs[index]
    if not value.name or value.type is None:
        if not value.name or not value.uses():
            value.name = unique_name(node.graph, name)  # type: ignore[arg-type]
        if like is not None:
            value.type, value.shape = like.type, like.shape
    return value
