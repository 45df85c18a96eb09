"""Where values live: rules for text and for what goes in and out of subgraphs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from onnxtrain.errors import NoKernelError
from onnxtrain.kernels.registry import Kernel
from onnxtrain.runtime.render import parameter
from onnxtrain.types import ONNX, DataType, op_name


def is_text(value: ir.Value | None) -> bool:
    """Whether a value holds strings, which never leave the host."""
    return value is not None and value.dtype == DataType.STRING


def moves_text(node: ir.Node, kernel: Kernel) -> bool:
    """Whether a node gets strings that its kernel cannot read, only move.

    Raises:
        NoKernelError: if the node would reduce them.
    """
    if kernel.text or node.domain != ONNX or not any(is_text(value) for value in node.inputs):
        return False
    reduction = node.attributes.get_string("reduction", "none")
    if reduction != "none":
        raise NoKernelError(
            f"no kernel for {op_name(node.domain, node.op_type)} of strings with "
            f"reduction '{reduction}', node '{node.name}'\n  strings run with reduction 'none'"
        )
    return not subgraphs(node)


def subgraphs(node: ir.Node) -> dict[str, ir.Graph]:
    """Subgraphs of a node by the parameter that takes them."""
    found = [a for a in node.attributes.data.values() if a.type == ir.AttributeType.GRAPH]
    return {parameter(attribute.name): attribute.as_graph() for attribute in found}


def host_parameters(kernel: Kernel, graph: ir.Graph) -> set[ir.Value]:
    """Inputs of a subgraph that arrive on the host."""
    return {
        value
        for index, value in enumerate(graph.inputs)
        if index in kernel.host_params or is_text(value)
    }


def result_places(
    kernel: Kernel, graphs: Mapping[str, ir.Graph], host: Collection[ir.Value]
) -> list[bool]:
    """Whether each result of a node's subgraphs is handed over on the host.

    What goes round in a loop stays on the device. Branches hand over on the host what is on the
    host in all of them; a constant is wherever it is wanted.
    """
    places = []
    for index, values in enumerate(zip(*(g.outputs for g in graphs.values()), strict=True)):
        branches = not any(graph.inputs for graph in graphs.values())
        agreed = branches and _on_host(values, host)
        places.append(index in kernel.host_results or is_text(values[0]) or agreed)
    return places


def _on_host(values: Sequence[ir.Value], host: Collection[ir.Value]) -> bool:
    computed = [value for value in values if value.const_value is None]
    return bool(computed) and all(value in host for value in computed)
