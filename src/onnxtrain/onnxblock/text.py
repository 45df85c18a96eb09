"""Blocks written in ONNX's text form, for those with many nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
import onnx.parser

from onnxtrain.onnxblock import edit


def add_text(model: onnx.ModelProto, source: str, inputs: Mapping[str, str]) -> list[str]:
    """Append the nodes and constants of a graph in text form.

    Args:
        model: The model.
        source: ``name (type[dims] input, ...) => (type[dims] output, ...) <constants> { nodes }``.
        inputs: Values of the model by the names of the inputs.

    Returns:
        The names that the outputs have in the model.
    """
    graph = onnx.parser.parse_graph(source)
    prefix = edit.generate_name(graph.name)
    names = {"": "", **inputs}

    def renamed(name: str) -> str:
        return names.setdefault(name, f"{prefix}/{name}")

    _rename(graph, renamed, prefix)
    model.graph.node.extend(graph.node)
    model.graph.initializer.extend(graph.initializer)
    return [output.name for output in graph.output]


def _rename(graph: onnx.GraphProto, renamed: Callable[[str], str], prefix: str) -> None:
    """Give every value and node of a graph and of the bodies in it another name."""
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = renamed(value.name)
    for index, node in enumerate(graph.node):
        node.input[:] = [renamed(name) for name in node.input]
        node.output[:] = [renamed(name) for name in node.output]
        node.name = f"{prefix}/{node.op_type}_{index}"
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, renamed, f"{node.name}/{attribute.g.name}")
