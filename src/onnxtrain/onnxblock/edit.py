"""Add names, nodes, constants, inputs and outputs to a ModelProto."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from onnxtrain.onnxblock.check import infer_types
from onnxtrain.onnxblock.values import exists, require_value
from onnxtrain.types import MS

ML = "ai.onnx.ml"
_VERSION_OF_DOMAIN = {MS: 1, ML: 3}
_numbers = itertools.count(1)


def generate_name(model: onnx.ModelProto, token: str) -> str:
    """A name that neither this process nor the model has used: ``onnx::<token>::<number>``."""
    while True:
        name = f"onnx::{token}::{next(_numbers)}"
        if not exists(model, name) and all(node.name != name for node in model.graph.node):
            return name


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
    name = generate_name(model, op_type)
    node = onnx.helper.make_node(op_type, inputs, outputs, name, domain=domain)
    for key, value in sorted((attributes or {}).items()):
        node.attribute.append(onnx.helper.make_attribute(key, value))
    model.graph.node.append(node)


def add_constant(
    model: onnx.ModelProto, token: str, value: npt.ArrayLike, element_type: int
) -> str:
    """Append an initializer of the given element type; gives its name.

    A number becomes a tensor of rank 0, which never changes the rank of what it is combined with.
    """
    name = generate_name(model, token)
    array = np.asarray(value).astype(onnx.helper.tensor_dtype_to_np_dtype(element_type))
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return name


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
