"""Shares of one half, of which 1 - a is one half, too.

``x * a + y * (1 - a)`` with a learned ``a`` that begins with 0.5: torch's exporter computes the
rest and finds it equal to the share, so that one tensor stands for both. Calls still tell them
apart.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxtrain.graph.constants import copy, is_uniform
from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.torch_export.folded import read_numbers
from onnxtrain.graph.torch_export.shifted import alike
from onnxtrain.graph.torch_export.traced import (
    call_of,
    given,
    module_of,
    parameters,
    read_by_call,
    stem,
    tell_rest,
)

_DIFFERENCE = "sub"
"""What calls are named that subtract."""
_HALF = 0.5


def part_rests(graph: ir.Graph) -> None:
    """Give readers of such a rest a tensor of their own, in place."""
    known = parameters(graph)
    shares = [graph.initializers.get(name) for name in known.values()]
    halves = [value for value in shares if value is not None and _is_half(value)]
    made = {call_of(node) for node in graph} if halves else set()
    for value in halves:
        for node, index, call in list(_rests(value, known, made)):
            name = _share(graph, value, node)
            if name is not None:
                own = copy(graph, value, unique_name(graph, call))
                tell_rest(own, name)
                node.replace_input_with(index, own)


def _is_half(value: ir.Value) -> bool:
    """Whether several nodes read a constant of nothing but halves."""
    tensor = read_numbers(value) if len(value.uses()) > 1 else None
    return tensor is not None and is_uniform(tensor) and float(tensor.numpy().flat[0]) == _HALF


def _rests(
    value: ir.Value, known: dict[str, str], made: set[str | None]
) -> Iterator[tuple[ir.Node, int, str]]:
    """Who reads a tensor in the place of a difference that no node computes, and its name."""
    for node, index in value.uses():
        names = [n for n in read_by_call(node) if stem(n) == _DIFFERENCE and n not in made]
        if len(names) == 1 and not given(node, known):
            yield node, index, names[0]


def _share(graph: ir.Graph, value: ir.Value, node: ir.Node) -> str | None:
    """The one parameter of halves in the module of a node, else that of all; None if several."""
    names = [str(value.name), *alike(graph, value)]
    near = [name for name in names if name.rpartition(".")[0] == module_of(node)]
    found = near or names
    return found[0] if len(found) == 1 else None
