"""Which tensors prepare the model's inputs: means that are subtracted, deviations to divide by.

Converters write the preprocessing of a pipeline in front of the network, where it looks like a
layer. Its numbers were measured on data, and the network was trained on what they make of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxtrain.transforms.weights.places import MOVERS, final_uses
from onnxtrain.types import ONNX

_ARITHMETIC = frozenset({"Add", "Div", "Mul", "Sub"})
_MOVERS = MOVERS - {"Concat"}
_BEFORE = MOVERS | {"Gather", "Pad", "Resize", "Split", "Upsample"}
"""What is done to images before: their channels are turned round, their size is changed."""


def preparing(graph: ir.Graph) -> set[ir.Value]:
    """Initializers that do nothing but shift and scale inputs before any other computation.

    A factor counts behind a mean only: alone it may be learned, as may everything that is added.
    """
    places = dict(_places(graph))
    met = set(places.values())
    return {
        value
        for value in graph.initializers.values()
        if value in met and all(use in places for use in final_uses(value))
    }


def _places(graph: ir.Graph) -> Iterator[tuple[tuple[ir.Node, int], ir.Value]]:
    """Where an input meets a number that prepares it, with the initializer that it comes from."""
    raw = {value for value in graph.inputs if value.name not in graph.initializers}
    centred: set[ir.Value] = set()
    for node in graph:
        found = _operands(node, raw)
        if found is None:
            continue
        data, number, index = found
        first = data in centred
        if number is None:
            shifted = first
        else:
            home = _home(number)
            if not _is_preparation(node, index, home, first) or not _fits(number, data):
                continue
            shifted = first or (node.op_type, index) == ("Sub", 1)
            yield (node, index), home
        raw.update(node.outputs)
        if shifted:
            centred.update(node.outputs)


def _operands(node: ir.Node, raw: set[ir.Value]) -> tuple[ir.Value, ir.Value | None, int] | None:
    """What a node takes of an input, and what it computes with that, as which of its own inputs."""
    if node.domain != ONNX or not node.inputs or node.inputs[0] is None:
        return None
    if node.op_type in _BEFORE:
        given = node.inputs if node.op_type == "Concat" else node.inputs[:1]
        return (node.inputs[0], None, 0) if all(value in raw for value in given) else None
    if node.op_type not in _ARITHMETIC:
        return None
    first, second = node.inputs
    if second is None or (first in raw) == (second in raw):
        return None
    return (first, second, 1) if first in raw else (second, first, 0)


def _is_preparation(node: ir.Node, index: int, home: ir.Value, centred: bool) -> bool:
    tensor = home.const_value
    if tensor is None:
        return False
    factor = node.op_type == "Mul" and centred
    return tensor.size == 1 or factor or (node.op_type in ("Div", "Sub") and index == 1)


def _home(value: ir.Value) -> ir.Value:
    """The value that others only moved."""
    node = value.producer()
    while node is not None and node.domain == ONNX and node.op_type in _MOVERS:
        if node.inputs[0] is None:
            break
        value = node.inputs[0]
        node = value.producer()
    return value


def _fits(number: ir.Value, data: ir.Value) -> bool:
    """Whether a result is as large as the data: numbers that repeat it are compared with it."""
    if number.shape is None or data.shape is None or len(number.shape) > len(data.shape):
        return False
    sizes = zip(reversed(tuple(number.shape)), reversed(tuple(data.shape)), strict=False)
    return all(size == 1 or other != 1 for size, other in sizes)
