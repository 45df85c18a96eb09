"""Changes to a graph, each small and safe."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir

from onnxtrain.graph import schemas
from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import ONNX

_collected: dict[ir.Graph, set[str] | None] = {}
"""Names of the graphs that are being worked on, None before they are needed."""


@contextmanager
def collected_names(graph: ir.Graph) -> Iterator[None]:
    """With: names of a graph are collected once, if at all, instead of for every new one.

    Meanwhile whoever names a value adds the name, unless it has a builder's prefix.
    """
    if graph in _collected:
        yield
        return
    _collected[graph] = None
    try:
        yield
    finally:
        del _collected[graph]


def taken_names(graph: ir.Graph) -> set[str]:
    """Every value name of a graph and its subgraphs; one set as long as names are collected."""
    names = _collected.get(graph)
    if names is None:
        names = value_names(graph)
        if graph in _collected:
            _collected[graph] = names
    return names


def unique_name(graph: ir.Graph, wanted: str) -> str:
    """A value name that the graph does not use yet."""
    taken = taken_names(graph)
    return fresh_name(wanted, taken, graph.initializers)


def fresh_name(wanted: str, taken: set[str], *more: Container[str]) -> str:
    """A name that is in none of these, numbered if need be; it is added to the first."""
    name, count = wanted, 1
    while name in taken or any(name in names for names in more):
        count += 1
        name = f"{wanted}_{count}"
    taken.add(name)
    return name


def value_names(graph: ir.Graph) -> set[str]:
    """Every value name of a graph and its subgraphs."""
    names = {value.name for value in graph.inputs} | set(graph.initializers)
    for node in all_nodes(graph):
        names.update([value.name for value in node.outputs])
        for attribute in node.attributes.data.values():
            if attribute.type == ir.AttributeType.GRAPH:
                inner = attribute.as_graph()
                names |= {v.name for v in inner.inputs} | set(inner.initializers)
    return {name for name in names if name}


def reads(node: ir.Node) -> list[ir.Value]:
    """Values that a node reads: its inputs, and what its subgraphs take from outside of them."""
    found = [value for value in node.inputs if value is not None]
    for attribute in node.attributes.data.values():
        if attribute.type == ir.AttributeType.GRAPH:
            found += _captured(attribute.as_graph())
    return found


def _captured(graph: ir.Graph) -> list[ir.Value]:
    own = {*graph.inputs, *graph.initializers.values()}
    own |= {value for node in graph for value in node.outputs}
    needed = [value for node in graph for value in reads(node)]
    return [value for value in (*needed, *graph.outputs) if value not in own]


def is_used(value: ir.Value) -> bool:
    """Whether some node reads the value or the graph returns it."""
    return bool(value.uses()) or value.is_graph_output()


def sole_reader(value: ir.Value) -> ir.Node | None:
    """The node that reads a value, if there is one use of it and it is no output of the graph."""
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def detach(*nodes: ir.Node) -> tuple[ir.Node, ...]:
    """Let nodes read nothing, so that they can be removed later, together with others.

    Each removal looks through all outputs of the graph, and a training graph has many.
    """
    for node in nodes:
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
    return nodes


def remove_dead(graph: ir.Graph, keep: Callable[[ir.Node], bool] = lambda node: False) -> None:
    """Remove nodes whose outputs nobody uses, and initializers that nobody reads."""
    dead = []
    for node in reversed(list(graph)):
        if not any([is_used(value) for value in node.outputs]) and not keep(node):
            detach(node)
            dead.append(node)
    graph.remove(dead, safe=True)
    for name, value in list(graph.initializers.items()):
        if not is_used(value) and not value.is_graph_input():
            del graph.initializers[name]


def blank_unused_outputs(node: ir.Node, keep: Collection[ir.Value] = ()) -> None:
    """Leave optional outputs of a node unnamed if nobody uses them."""
    last = len(node.outputs) - 1
    for index, value in reversed(list(enumerate(node.outputs))):
        if is_used(value) or value in keep or not _is_optional(node, index):
            continue
        value.name = ""
        if index == last and index > 0:
            node.resize_outputs(index)
            last -= 1


def _is_optional(node: ir.Node, index: int) -> bool:
    """Whether an output may be left out; those of a list (Split) may not, they are counted."""
    newest = onnx.defs.onnx_opset_version() if node.domain == ONNX else 1
    schema = schemas.get(node.domain, node.op_type, node.version or newest)
    if schema is None:
        return True
    formal = schema.outputs[min(index, len(schema.outputs) - 1)]
    return formal.option == onnx.defs.OpSchema.FormalParameterOption.Optional


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


def declare_constant(value: ir.Value) -> None:
    """Write the type and shape of a constant into its value."""
    tensor = value.const_value
    if tensor is not None and value.type is None:
        value.type = ir.TensorType(tensor.dtype)
    if tensor is not None and value.shape is None:
        value.shape = ir.Shape(tensor.numpy().shape)


def take_over(old: ir.Value, new: ir.Value) -> None:
    """Let a new value stand for an old one everywhere, under its name."""
    name = old.name
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    old.name = f"{name}_replaced" if name else name
    new.name, new.type, new.shape = name, old.type, old.shape
