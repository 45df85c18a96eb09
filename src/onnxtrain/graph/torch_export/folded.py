"""Weights of which an exporter made a second tensor, by computing another form of them.

A parameter that is read as it is and transposed (an embedding that also gives the scores, a layer
that is called with inputs of different ranks) becomes two tensors once the exporter has computed
the transposed one; a layer that is called twice may have it twice. That is right for a model that
only runs; training would let them drift apart.
Torch's new exporter tells what it computed a tensor from. The old one only gives it a name of its
own making, so that the numbers have to tell.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.constants import is_uniform
from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.torch_export.traced import is_computed, parameters, sources
from onnxtrain.types import FLOATS, DataType

_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"

_MOST_AXES = 4
"""Tensors with more of them are not looked at for another order."""

Matrices = Mapping[tuple[DataType, tuple[int, ...]], Sequence[ir.Value]]
"""Matrices of a model by their type and sizes."""


def tie(model: ir.Model) -> bool:
    """Make of a parameter again what an exporter computed from it, in place; whether it did.

    That is: what is the parameter transposed or in another shape, if it is still read itself, and
    what was computed from it more than once.
    """
    graph = model.graph
    matrices = _named_matrices(graph)
    found = False
    for value in list(graph.initializers.values()):
        node = _way(graph, value) or _turned_back(value, matrices)
        if node is not None:
            take_place(graph, value, node)
            found = True
    return _join(graph) or found


def _join(graph: ir.Graph) -> bool:
    """Make one of tensors that were computed from the same alike; whether there were any.

    That is how a layer looks that is called more than once.
    """
    firsts: dict[tuple[object, ...], ir.Value] = {}
    found = False
    for value in list(graph.initializers.values()):
        names, made = sources(value), read_numbers(value)
        if not names or made is None or not made.size:
            continue
        first = firsts.setdefault((*names, made.dtype, *made.shape.numpy()), value)
        if first is not value and _same(first, made):
            value.replace_all_uses_with(first)
            graph.initializers.pop(str(value.name))
            found = True
    return found


def join_forms(model: ir.Model) -> bool:
    """Make one of tensors that are one parameter in several shapes; whether there were any.

    Learned queries are read as they are, and with the axis of samples behind that of places.
    """
    graph, firsts, found = model.graph, dict[tuple[object, ...], ir.Value](), False
    known = set(parameters(graph).values())
    for value in list(graph.initializers.values()) if known else ():
        names = known.intersection(sources(value))
        made = read_numbers(value) if len(names) == 1 else None
        if made is None or not made.size or is_uniform(made):
            continue
        first = firsts.setdefault((*names, made.dtype, made.size), value)
        tensor = first.const_value
        if first is value or tensor is None or tensor.shape == made.shape:
            continue
        node = _moved(graph, first, value)
        if node is not None:
            take_place(graph, value, node)
            found = True
    return found


def _same(value: ir.Value, other: ir.TensorProtocol) -> bool:
    """Whether a constant has the numbers of another; equal ones do not tell how they were moved."""
    assert value.const_value is not None
    same = np.array_equal(value.const_value.numpy(), other.numpy())
    return same and not is_uniform(value.const_value)


def _way(graph: ir.Graph, value: ir.Value) -> ir.Node | None:
    """A node that makes a tensor of the parameter that it was computed from, if there is one."""
    made = read_numbers(value)
    if made is None:
        return None
    for name in sources(value):
        parameter = graph.initializers.get(name)
        if parameter is None or not _is_read_parameter(parameter):
            continue
        assert parameter.const_value is not None
        if is_uniform(parameter.const_value):
            continue  # equal numbers do not tell how they were moved
        node = _moved(graph, parameter, value)
        if node is not None:
            return node
    return None


def _moved(graph: ir.Graph, one: ir.Value, other: ir.Value) -> ir.Node | None:
    """A node that makes a constant of another one that has its numbers in another form."""
    assert one.const_value is not None and other.const_value is not None
    old, new = one.const_value.numpy(), other.const_value.numpy()
    if old.shape != new.shape and np.array_equal(old.ravel(), new.ravel()):
        return ir.node("Reshape", [one, shape_of(graph, other)])
    if sorted(old.shape) == sorted(new.shape) and old.ndim <= _MOST_AXES:
        for order in itertools.permutations(range(old.ndim)):
            turned = order != tuple(range(old.ndim)) and old.transpose(order)
            if turned is not False and np.array_equal(turned, new):
                return ir.node("Transpose", [one], {"perm": order})
    return None


def read_numbers(value: ir.Value) -> ir.TensorProtocol | None:
    """The numbers of a constant that only nodes read; None if they are no floating point ones."""
    if value.is_graph_input() or value.is_graph_output() or not value.uses():
        return None
    made = value.const_value
    return made if made is not None and made.dtype in FLOATS else None


def _named_matrices(graph: ir.Graph) -> Matrices:
    """Constants that are matrices, under names that an exporter did not make up."""
    found: dict[tuple[DataType, tuple[int, ...]], list[ir.Value]] = {}
    for value in graph.initializers.values():
        made = None if is_computed(value) else read_numbers(value)
        if made is not None and made.size and len(made.shape) == 2:
            found.setdefault((made.dtype, tuple(made.shape.numpy())), []).append(value)
    return found


def _turned_back(value: ir.Value, matrices: Matrices) -> ir.Node | None:
    """A Transpose of the matrix that a computed one has all numbers of, if there is one.

    A matrix that is the same transposed (zeros, the identity) does not tell.
    """
    made = read_numbers(value) if is_computed(value) else None
    if made is None or len(made.shape) != 2:
        return None
    rows, columns = made.shape.numpy()
    for parameter in matrices.get((made.dtype, (columns, rows)), ()):
        assert parameter.const_value is not None
        old, new = parameter.const_value.numpy(), made.numpy()
        if not np.array_equal(old[0], new[:, 0]) or is_uniform(parameter.const_value):
            continue
        if np.array_equal(old.T, new) and not np.array_equal(old, new):
            return ir.node("Transpose", [parameter], {"perm": [1, 0]})
    return None


def _is_read_parameter(value: ir.Value) -> bool:
    tensor = value.const_value
    told = value.metadata_props.get(_KIND) == "PARAMETER" and not value.is_graph_input()
    return told and tensor is not None and tensor.size > 0 and bool(value.uses())


def shape_of(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """The shape of a tensor as a constant."""
    assert value.const_value is not None
    name = unique_name(graph, f"{value.name}_shape")
    sizes = ir.Tensor(np.array(value.const_value.shape.numpy(), np.int64), name=name)
    shape = ir.Value(name=name, const_value=sizes, type=ir.TensorType(ir.DataType.INT64))
    graph.register_initializer(shape)
    return shape


def take_place(graph: ir.Graph, value: ir.Value, node: ir.Node) -> None:
    """Let a node make what was a constant."""
    name = str(value.name)
    result = node.outputs[0]
    result.type, result.shape = value.type, value.shape
    graph.initializers.pop(name)
    value.replace_all_uses_with(result)
    value.name, result.name = f"{name}_replaced", name
    graph.insert_before(graph[0], node)
