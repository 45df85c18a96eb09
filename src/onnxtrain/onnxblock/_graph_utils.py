"""What blocks written for onnxruntime-training call to edit ``self.base`` by hand.

The module has an underscore there, but no other way is open to a block that adds inputs or names of
its own, so many use it. The functions have the names and arguments that such blocks expect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx

from onnxtrain.graph.names import nearest
from onnxtrain.onnxblock.edit import generate_name, set_outputs
from onnxtrain.onnxblock.values import exists

__all__ = [
    "generate_graph_name",
    "get_input_from_input_name",
    "get_output_from_output_name",
    "node_arg_exists",
    "register_graph_outputs",
]


def generate_graph_name(token: str) -> str:
    """A name for a value or a node that nothing has yet; the token is a part of it."""
    return generate_name(token)


def node_arg_exists(model: onnx.ModelProto, node_arg_name: str) -> bool:
    """Whether the graph has a value of that name."""
    return exists(model, node_arg_name)


def get_output_from_output_name(model: onnx.ModelProto, output_name: str) -> onnx.ValueInfoProto:
    """The output of the graph that has the name.

    Raises:
        LookupError: if there is none.
    """
    return _named("output", model.graph.output, output_name)


def get_input_from_input_name(model: onnx.ModelProto, input_name: str) -> onnx.ValueInfoProto:
    """The input of the graph that has the name.

    Raises:
        LookupError: if there is none.
    """
    return _named("input", model.graph.input, input_name)


def register_graph_outputs(model: onnx.ModelProto, output_names: Sequence[str] | str) -> None:
    """Make the named values the only outputs of the graph.

    Raises:
        LookupError: if there is no such value, or its type is not known.
    """
    set_outputs(model, [output_names] if isinstance(output_names, str) else output_names)


def _named(kind: str, values: Iterable[onnx.ValueInfoProto], wanted: str) -> onnx.ValueInfoProto:
    found = {value.name: value for value in values}
    if wanted not in found:
        have = nearest([f"'{wanted}'"], [f"'{name}'" for name in found])
        raise LookupError(f"the graph has no {kind} '{wanted}'\n  have  {have}")
    return found[wanted]
