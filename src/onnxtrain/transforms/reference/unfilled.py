"""Gradients of Split without those of the outputs that have none.

The reference joins the gradients of the outputs that have one, so that the gradient of what was
split is too short, and stands in the wrong place. Where an output has none it is zero.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.graph.names import listed
from onnxtrain.graph.phase import Phase, mark, nodes_in
from onnxtrain.transforms.reference.gradient_names import (
    forward_values,
    infer_behind,
    owner,
    trained_by,
)
from onnxtrain.types import ONNX


@dataclasses.dataclass(frozen=True)
class Filled:
    """A gradient of what was split that has all its parts now; the parts are what it joins."""

    value: ir.Value
    gradient: ir.Value


def fill_gradients(model: ir.Model, level: int) -> list[Filled]:
    """Fill gradients of a prepared training model that lack parts with zeros, in place.

    Args:
        model: The training model.
        level: Which of the callers is warned, counted from this function as 1.
    """
    graph = model.graph
    backward = list(nodes_in(graph, Phase.BACKWARD))
    forward = forward_values(graph, backward)
    found = []
    for node in backward:
        split = _lacking(node, forward)
        if split is not None:
            found.append(_fill(graph, node, split, forward))
    if found:
        infer_behind(model, [part for one in found for part in _parts(one)])
        _warn(found, level + 1)
    return found


def _lacking(node: ir.Node, forward: Mapping[str, ir.Value]) -> ir.Node | None:
    """The Split of whose outputs a node joins the gradients, if it lacks some; else None."""
    if node.domain != ONNX or node.op_type != "Concat":
        return None
    of = owner(node.outputs[0], forward)
    outputs = [None if v is None else owner(v, forward) for v in node.inputs]
    producers = {None if value is None else value.producer() for value in outputs}
    split = producers.pop() if len(producers) == 1 else None
    if split is None or split.op_type != "Split" or split.inputs[0] is not of:
        return None
    places = [split.outputs.index(value) for value in outputs if value is not None]
    joined = sorted(set(places)) == places and len(places) < len(split.outputs)
    return split if joined and _axis(node) == _axis(split) else None


def _axis(node: ir.Node) -> int:
    return node.attributes.get_int("axis", 0)


def _fill(
    graph: ir.Graph, node: ir.Node, split: ir.Node, forward: Mapping[str, ir.Value]
) -> Filled:
    """Join zeros for the outputs without a gradient, too."""
    given = {owner(v, forward): v for v in node.inputs if v is not None}
    gradient = node.outputs[0]
    op = Ops(graph, f"{gradient.name}/")
    like = next(iter(given.values()))
    for index, output in enumerate(split.outputs):
        output.name = output.name or f"{op.prefix}output{index}"
    parts = [
        given[output] if output in given else op.filled(0, shape_of=output, like=like)
        for output in split.outputs
    ]
    whole = op.Concat(*parts, axis=_axis(split))
    for new in op.nodes:
        mark(new, Phase.BACKWARD)
    graph.insert_before(node, op.nodes)
    name = str(gradient.name)
    gradient.replace_all_uses_with(whole)
    graph.remove(node, safe=True)
    whole.name = name
    of = split.inputs[0]
    assert of is not None
    return Filled(of, whole)


def _parts(filled: Filled) -> list[ir.Value]:
    node = filled.gradient.producer()
    assert node is not None
    return [value for value in node.inputs if value is not None]


def _warn(found: Sequence[Filled], level: int) -> None:
    """Say what is filled, and which parameters train otherwise than in the reference."""
    values = listed(f"'{one.value.name}'" for one in found)
    names = listed(map(repr, trained_by(one.gradient for one in found)))
    warnings.warn(
        "the training model leaves out the gradients of outputs of Split that have none\n"
        f"  they are zeros now, in the gradients of {values}\n"
        f"  so that the whole gradient trains {names}; onnxruntime-training takes a part of it for "
        "another",
        stacklevel=level,
    )
