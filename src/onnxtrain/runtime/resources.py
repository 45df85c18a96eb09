"""What a kernel asks for with ``needs``, as source: facts of its node, or a bound name."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.bindings import dimensions

RESOURCE_NAMES = ("rng", "rng_host", "device", "device_host", "groups")
"""Names that a program binds itself."""


def is_wanted(value: ir.Value) -> bool:
    """Whether an output of a node has a name and somebody reads it."""
    return bool(value.name) and (bool(value.uses()) or value.is_graph_output())


def resource_text(
    resource: str, node: ir.Node, *, on_host: bool, opset: int, deterministic: bool
) -> str:
    """Source of the keyword argument for a resource of a node's kernel."""
    if resource == "wanted":
        return repr(tuple(is_wanted(value) for value in node.outputs))
    if resource == "deterministic":
        return repr(deterministic)
    if resource == "opset":
        return repr(opset)
    if resource == "taken":
        return "False"  # until the lifetimes of values are known
    if resource == "node":
        return repr(node.name)
    if resource == "out_shape":
        return repr(dimensions(node.outputs[0].shape))
    if resource == "in_shapes":
        return repr(tuple(None if v is None else dimensions(v.shape) for v in node.inputs))
    if resource == "out_types":
        return repr(tuple((int(v.dtype or 0), dimensions(v.shape)) for v in node.outputs))
    return resource + "_host" if on_host and resource != "groups" else resource
