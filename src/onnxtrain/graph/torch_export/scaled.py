"""Parameters of which a file only has a multiple, by a number that a call tells.

``torch.add(x, w, alpha=0.5)`` becomes a sum of x and a tensor that torch's exporter has computed.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.constants import constant, copy
from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.torch_export.folded import read_numbers, take_place
from onnxtrain.graph.torch_export.lost import Lost
from onnxtrain.graph.torch_export.traced import (
    module_of,
    parameters,
    scale_at,
    shapes,
    sources,
    stem,
)

_PRODUCTS = frozenset({"scaled_self", "tmp", "val"})
"""What products inside a call are called."""
_NUMBERS = frozenset({"beta", "beta_cast", "val", "value", "value_cast"})
"""What numbers are called there."""


def unscale(model: ir.Model) -> bool:
    """Let the graph multiply such parameters, in place; whether it has any."""
    graph = model.graph
    found = _part_products(graph)
    for value in list(graph.initializers.values()):
        scale = scale_of(graph, value)
        made = read_numbers(value)
        if scale is None or scale == 1 or made is None or not made.size:
            continue
        number = np.array(scale, made.dtype.numpy())
        with np.errstate(all="ignore"):
            before = made.numpy() / number
        name = _parameter(graph, value)
        # another tensor of the same parameter would be trained apart from this one
        if name is None or _holders(graph, name) > 1 or not np.isfinite(before).all():
            continue
        own = constant(graph, before, unique_name(graph, name))
        factor = constant(graph, number, unique_name(graph, f"{value.name}_scale"))
        take_place(graph, value, ir.node("Mul", [own, factor]))
        found = True
    return found


def _part_products(graph: ir.Graph) -> bool:
    """Part a parameter that is multiplied from one that is added; whether there were such.

    Those of one call that begin as zeros are one tensor, which the call does not name.
    """
    found = False
    for value in list(graph.initializers.values()):
        uses = list(value.uses())
        products = [
            (node, i) for node, i in uses if node.op_type == "Mul" and scale_at(node, i) == 1
        ]
        modules = {module_of(node) for node, _ in products}
        if not products or len(products) == len(uses) or len(modules) > 1:
            continue
        module = modules.pop() or ""
        lost = [name for name in Lost(graph).names if name.rpartition(".")[0] == module]
        if len(lost) != 1:
            continue
        own = copy(graph, value, unique_name(graph, lost[0]))
        for node, index in products:
            node.replace_input_with(index, own)
        found = True
    return found


def scale_of(graph: ir.Graph, value: ir.Value) -> float | None:
    """The number that a tensor is a parameter times; None if it is something else."""
    if stem(str(value.name).rpartition(".")[2]) not in _PRODUCTS:
        return None
    name = _parameter(graph, value)
    on_the_way = {stem(one) for one in sources(value) if one != name}
    plain = all(call in _NUMBERS or shapes(call) for call in on_the_way)
    scales = {scale_at(node, index) for node, index in value.uses()}
    return scales.pop() if name is not None and plain and len(scales) == 1 else None


def _parameter(graph: ir.Graph, value: ir.Value) -> str | None:
    """The one parameter that a tensor was computed from."""
    known = set(parameters(graph).values())
    names = known.intersection(sources(value))
    return names.pop() if len(names) == 1 else None


def _holders(graph: ir.Graph, name: str) -> int:
    """How many tensors are a parameter, or were computed from it."""
    return sum(name == one.name or name in sources(one) for one in graph.initializers.values())
