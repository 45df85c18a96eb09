"""The weights of attention: what happens to the result of Softmax before it meets the values."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxtrain.graph.edit import is_used
from onnxtrain.transforms.fusion.pattern import Refusal
from onnxtrain.transforms.fusion.reading import changes_precision, is_op, number, only_reader
from onnxtrain.transforms.fusion.regrouped import regroups
from onnxtrain.types import MS

_RATIO, _DROPS = 1, 2
"""Inputs of Dropout: how much, and whether at all."""
_DEFAULT_RATIO = 0.5


@dataclasses.dataclass(frozen=True)
class Weights:
    """What follows a Softmax.

    Attributes:
        nodes: Those up to the product with the values, which is the last.
        dropout: Share of the weights that is dropped.
    """

    nodes: tuple[ir.Node, ...]
    dropout: float


def read_weights(softmax: ir.Node) -> Weights | None:
    """What follows a Softmax, None if no product does."""
    nodes: list[ir.Node] = []
    dropout = 0.0
    value = softmax.outputs[0]
    while True:
        if (guard := _guard(value)) is not None:
            nodes += guard
        elif (node := _dropout(value)) is not None:
            dropout = 1 - (1 - dropout) * (1 - _ratio(node))
            nodes.append(node)
        elif (cast := only_reader(value, "Cast")) is not None and changes_precision(cast):
            nodes.append(cast)
        elif (moved := only_reader(value, "Reshape")) is not None and regroups(moved):
            nodes.append(moved)
        else:
            break
        value = nodes[-1].outputs[0]
    product = _product(value)
    return None if product is None else Weights((*nodes, product), dropout)


def _guard(value: ir.Value) -> list[ir.Node] | None:
    """Where(IsNaN(p), 0, p): queries that may see nothing get nothing."""
    readers = list(dict.fromkeys(node for node, _ in value.uses()))
    tests = [node for node in readers if is_op(node, "IsNaN")]
    choices = [node for node in readers if is_op(node, "Where")]
    if len(readers) != 2 or len(tests) != 1 or len(choices) != 1 or value.is_graph_output():
        return None
    condition, yes, no = choices[0].inputs
    if condition is not tests[0].outputs[0] or number(yes) != 0 or no is not value:
        return None
    return [tests[0], choices[0]]


def _dropout(value: ir.Value) -> ir.Node | None:
    """The Dropout that is all that reads a value."""
    readers = [node for node, _ in value.uses()]
    if len(readers) != 1 or value.is_graph_output():
        return None
    return readers[0] if _drops(readers[0]) else None


def _drops(node: ir.Node) -> bool:
    return is_op(node, "Dropout") or (node.domain, node.op_type) == (MS, "BitmaskDropout")


def _ratio(node: ir.Node) -> float:
    """How much a Dropout drops."""
    given = [*node.inputs, None, None]
    switch = given[_DROPS]
    on = 0.0 if switch is None else number(switch)
    if on is None:
        raise Refusal(f"only a run can tell whether '{node.name}' (Dropout) drops anything")
    if not on:
        return 0.0
    ratio = _DEFAULT_RATIO if given[_RATIO] is None else number(given[_RATIO])
    if ratio is None:
        raise Refusal(f"only a run can tell how much '{node.name}' (Dropout) drops")
    if ratio and "seed" in node.attributes:
        raise Refusal(f"'{node.name}' (Dropout) has a seed of its own")
    if any(is_used(mask) for mask in node.outputs[1:]):
        raise Refusal(f"the mask of '{node.name}' (Dropout) is read by other nodes")
    return ratio


def _product(value: ir.Value) -> ir.Node | None:
    """The product with the values, on its left; one of those who read a value."""
    for node, index in value.uses():
        if is_op(node, "MatMul") and index == 0:
            return node
    return None
