"""Add names, nodes, constants, inputs and outputs to a ModelProto."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from onnxtrain.graph.names import GENERATED
from onnxtrain.onnxblock.check import infer_types
from onnxtrain.onnxblock.values import element_type, opset_of, require_value
from onnxtrain.types import ML, MS, TRAINING

_VERSION_OF_DOMAIN = {MS: 1, ML: 3, TRAINING: 1}
_NUMBERED_SINCE = 6
"""The first opset whose Cast takes the number of an element type."""


class _Numbers:
    """The number of the next generated name."""

    next = 1


def reserve_names(model: onnx.ModelProto) -> None:
    """See to it that no generated name is one that the model has already."""
    used = [
        int(match[1])
        for name in _names(model.graph)
        if (match := GENERATED.fullmatch(name)) is not None
    ]
    _Numbers.next = max([_Numbers.next, *(number + 1 for number in used)])


def generate_name(token: str) -> str:
    """A name that neither this process nor the opened model has: ``onnx::<token>::<number>``.

    Those of the model were reserved when it was opened: looking them all up takes too long.
    """
    name = f"onnx::{token}::{_Numbers.next}"
    _Numbers.next += 1
    return name


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """Names of all values and nodes of a graph and of the bodies in it."""
    for value in (*graph.input, *graph.initializer):
        yield value.name
    for node in graph.node:
        yield node.name
        yield from node.output
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _names(attribute.g)


def add_node(
    model: onnx.ModelProto,
    op_type: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    domain: str = "",
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """Append a node; the operators of other domains get their opset import."""
    _import_domain(model, domain)
    name = generate_name(op_type)
    node = onnx.helper.make_node(op_type, inputs, outputs, name, domain=domain)
    for key, value in sorted((attributes or {}).items()):
        node.attribute.append(onnx.helper.make_attribute(key, value))
    model.graph.node.append(node)


def cast_to(model: onnx.ModelProto, dtype: int) -> dict[str, int | str]:
    """The attribute of a Cast to an element type: its number, in the first opsets its name."""
    old = opset_of(model) < _NUMBERED_SINCE
    return {"to": onnx.TensorProto.DataType.Name(dtype) if old else dtype}


def add_constant(model: onnx.ModelProto, token: str, value: npt.ArrayLike, dtype: int) -> str:
    """Append an initializer of the given element type; gives its name.

    A number becomes a tensor of rank 0, which never changes the rank of what it is combined with.
    """
    name = generate_name(token)
    array = np.asarray(value).astype(onnx.helper.tensor_dtype_to_np_dtype(dtype))
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return name


def number(model: onnx.ModelProto, value: float, like: str) -> str:
    """Append a number of the element type of another value; gives its name."""
    return add_constant(model, "number", value, element_type(model, like))


def add_input_like(model: onnx.ModelProto, like: onnx.ValueInfoProto, name: str) -> None:
    """Append a graph input with the type and shape of another value."""
    value = onnx.ValueInfoProto()
    value.CopyFrom(like)
    value.name = name
    model.graph.input.append(value)


def declare(model: onnx.ModelProto, value: onnx.ValueInfoProto) -> None:
    """Write down the type of a value that inference cannot know."""
    model.graph.value_info.append(value)


def set_outputs(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Make the named values the only outputs of the graph, and write down every inferred type.

    Raises:
        LookupError: if the type of one of them is not known.
    """
    graph = model.graph
    _declare_inferred(model)
    outputs = [require_value(model, name) for name in names]
    former = [value for value in graph.output if value.name not in names]
    inner = {name for node in graph.node for name in node.output}
    kept = [value for value in graph.value_info if value.name not in names]
    known = {value.name for value in kept}
    kept += [value for value in former if value.name in inner - known]
    del graph.output[:], graph.value_info[:]
    graph.output.extend(outputs)
    graph.value_info.extend(kept)


def _declare_inferred(model: onnx.ModelProto) -> None:
    graph = model.graph
    declared = {value.name for value in (*graph.value_info, *graph.output)}
    inferred = infer_types(model).graph.value_info
    graph.value_info.extend(value for value in inferred if value.name not in declared)


def _import_domain(model: onnx.ModelProto, domain: str) -> None:
    if domain and all(opset.domain != domain for opset in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(domain, _VERSION_OF_DOMAIN[domain]))
