"""Weights that an exporter made one tensor because their numbers were equal.

A model that was never trained has many tensors of ones and zeros. Exporters write equal tensors
once, which is right for a model that only runs; whoever trains it would tie layers together that
have nothing to do with each other. A tensor of unequal numbers that several layers read is tied on
purpose, unless its nodes tell otherwise (``graph.copied``), and so is any tensor that one layer
reads twice.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.constants import constant, copy, is_uniform, made_for
from onnxtrain.graph.edit import collected_names, unique_name
from onnxtrain.graph.torch_export.copied import copied_node, is_mover, part_copies
from onnxtrain.graph.torch_export.copied_results import part_results
from onnxtrain.graph.torch_export.lost import Lost
from onnxtrain.graph.torch_export.mirrored import part_rests
from onnxtrain.graph.torch_export.older_copies import identities
from onnxtrain.graph.torch_export.traced import (
    SCOPES,
    call_of,
    given,
    module_of,
    nested,
    of_number,
    parameters,
    sources,
    tell_sources,
)
from onnxtrain.types import FLOATS, ONNX

_LEAVES = {1: "weight", 2: "bias", 3: "running_mean", 4: "running_var"}
"""What the inputs of a BatchNormalization are called."""
_STATISTICS = (3, 4)
_SHAPERS = frozenset({"Reshape", "Squeeze", "Unsqueeze"})
_KEEPERS = _SHAPERS | {"Cast", "Identity"}
"""Operators behind which a vector still has the numbers of a statistic, in their order."""

Use = tuple[ir.Node, int]


def separate(model: ir.Model) -> bool:
    """Give layers tensors of their own where an exporter merged them, in place; whether it did.

    Five cases: a tensor that nodes were traced with as several parameters, one of halves that also
    is what is left of 1, one of equal numbers (or of a copied layer) that reaches a layer through
    an Identity, one of equal numbers that nodes of several modules read, or a part of which one
    node takes for all of them, and the running statistics of a BatchNormalization if anything else
    reads them, or makes others of them.
    """
    graph = model.graph
    before = len(graph.initializers)
    with collected_names(graph):
        part_copies(graph)
        part_results(graph)
        part_rests(graph)
        copies = set(identities(model))
        for node in list(graph):
            _from_identity(graph, node, node in copies)
        for value in list(graph.initializers.values()):
            if value.is_graph_input() or not _may_be_shared(value) or not _is_uniform(value):
                continue
            for mover in _movers(value):
                _own_mover(graph, mover, str(value.name).rpartition(".")[0])
            if len(value.uses()) > 1:
                _by_module(graph, value)
        for node in list(graph):
            if _is(node, "BatchNormalization") and len(node.inputs) > max(_STATISTICS):
                _own_statistics(graph, node)
    return len(graph.initializers) > before


def _is(node: ir.Node, op_type: str) -> bool:
    return node.domain == ONNX and node.op_type == op_type


def _is_uniform(value: ir.Value) -> bool:
    """Whether a constant has one real number throughout."""
    tensor = value.const_value
    return tensor is not None and tensor.dtype in FLOATS and is_uniform(tensor)


def _is_vector(value: ir.Value) -> bool:
    """Whether a constant has one axis, or was computed so that all others have a single place."""
    tensor = value.const_value
    if tensor is None or tensor.size < 2:
        return False
    sizes = tensor.shape.numpy()
    return len(sizes) == 1 or (max(sizes) == tensor.size and bool(sources(value)))


def _from_identity(graph: ir.Graph, node: ir.Node, copied: bool) -> None:
    """Turn an Identity of a constant into one, if it is uniform or copied, and read elsewhere."""
    read = node.inputs[0] if _is(node, "Identity") else None
    if read is None or not read.is_initializer() or read.is_graph_input():
        return
    result = node.outputs[0]
    if len(read.uses()) < 2 or result.is_graph_output() or not (copied or _is_uniform(read)):
        return
    name = str(result.name)
    result.name = f"{name}_replaced"
    own = copy(graph, read, name)
    result.replace_all_uses_with(own)
    graph.remove(node, safe=True)


def _may_be_shared(value: ir.Value) -> bool:
    return len(value.uses()) > 1 or bool(_movers(value))


def _movers(value: ir.Value) -> list[ir.Node]:
    """Nodes that take parts of a value, or give it another shape."""
    return [node for node, index in value.uses() if is_mover(node, index)]


def _own_mover(graph: ir.Graph, node: ir.Node, owner: str) -> None:
    """Copy a node that moves a tensor of one module for all others that read what it makes.

    Modules inside its owner are given the tensor on purpose.
    """
    for mover in [one for value in node.outputs for one in _movers(value)]:
        _own_mover(graph, mover, owner)
    if node.graph is not graph or any(value.is_graph_output() for value in node.outputs):
        return
    readers: dict[str, list[tuple[int, Use]]] = {}
    for position, value in enumerate(node.outputs):
        for reader, index in value.uses():
            module = module_of(reader) or owner
            inside = f"{module}.".startswith(f"{owner}." if owner else "")
            group = readers.setdefault(owner if inside else module, [])
            group.append((position, (reader, index)))
    kept = owner if owner in readers else next(iter(readers), owner)
    if kept != owner:
        node.metadata_props[SCOPES] = readers[kept][0][1][0].metadata_props[SCOPES]
    for module, places in readers.items():
        if module != kept:
            _copy_for(graph, node, places)


def _copy_for(graph: ir.Graph, node: ir.Node, places: list[tuple[int, Use]]) -> None:
    """A copy of a node for some of its readers, whose module it tells as its own."""
    scopes = places[0][1][0].metadata_props[SCOPES]
    told = {**node.metadata_props, SCOPES: scopes}
    copied = copied_node(graph, node, list(node.inputs), told)
    for position, (reader, index) in places:
        reader.replace_input_with(index, copied.outputs[position])


def _by_module(graph: ir.Graph, value: ir.Value) -> None:
    """Give every module that reads a parameter one of its own; its owner keeps it.

    A vector that none of them owns, or a number that tells so, was computed from parameters by the
    exporter: the first one that reads it keeps it.
    """
    owner, _, leaf = str(value.name).rpartition(".")
    known = parameters(graph)
    uses: dict[str, list[Use]] = {}
    for node, index in value.uses():
        tied = value.name in given(node, known)
        uses.setdefault(owner if tied else module_of(node) or owner, []).append((node, index))
    if owner not in uses:
        if not _is_vector(value) and of_number(value) is None:
            return
        owner = next(iter(uses))
    del uses[owner]
    for module, places in uses.items():
        node, index = places[0]
        kind = _LEAVES[index] if _is(node, "BatchNormalization") else leaf
        inner = _is_inner(graph, value, module)
        own = copy(graph, value, unique_name(graph, f"{module}.{kind}"))
        made_of = [_renamed(name, owner, module) for name in sources(value)]
        tell_sources(own, [str(call_of(node))] if inner else made_of)
        for node, index in places:
            node.replace_input_with(index, own)


def _is_inner(graph: ir.Graph, value: ir.Value, module: str) -> bool:
    """Whether a module reads a parameter of another one in the place of numbers of its own call.

    Such as the ones of a normalization that learns none. Else it has a parameter that is lost.
    """
    if value.name not in parameters(graph).values():
        return False
    return not any(nested(name.rpartition(".")[0], module) for name in Lost(graph).names)


def _renamed(name: str, owner: str, module: str) -> str:
    """What a parameter of one module is called in another."""
    return f"{module}.{name[len(owner) + 1 :]}" if name.startswith(f"{owner}.") else name


def _own_statistics(graph: ir.Graph, node: ir.Node) -> None:
    """Copy running statistics that others read, or that nodes give another type or shape first.

    The node will move them, which it can only do with a constant that it alone reads.
    """
    spatial = node.attributes.get("spatial")
    vectors = spatial is None or spatial.as_int() == 1
    for index in _STATISTICS:
        value, ways = _origin(node.inputs[index], _KEEPERS if vectors else _KEEPERS - _SHAPERS)
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        if value is None or tensor is None or value.is_graph_input():
            continue
        if not ways and len(value.uses()) == 1:
            continue
        numbers = np.array(tensor.numpy())
        for way in ways:
            numbers = _passed_on(way, numbers)
        base = str(node.name or node.outputs[0].name)
        own = constant(graph, numbers, unique_name(graph, f"{base}.{_LEAVES[index]}"))
        node.replace_input_with(index, made_for(own, value))


def _origin(value: ir.Value | None, ops: frozenset[str]) -> tuple[ir.Value | None, list[ir.Node]]:
    """What nodes of a set make a statistic of, and these nodes in order."""
    ways: list[ir.Node] = []
    while value is not None:
        producer = value.producer()
        if producer is None or not _keeps(producer, ops):
            break
        ways.insert(0, producer)
        value = producer.inputs[0]
    return value, ways


def _keeps(node: ir.Node, ops: frozenset[str]) -> bool:
    if node.op_type == "Cast" and node.attributes["to"].type != ir.AttributeType.INT:
        return False  # the first version names types by words
    return node.domain == ONNX and node.op_type in ops


def _passed_on(node: ir.Node, numbers: np.ndarray) -> np.ndarray:
    """What a node makes of numbers, as a vector unless it leaves them in their shape."""
    if node.op_type == "Cast":
        return numbers.astype(ir.DataType(node.attributes["to"].as_int()).numpy())
    return numbers if node.op_type == "Identity" else numbers.reshape(-1)
