"""act(gate)·up where both are halves of one value, as one projection for both gives them.

Their gradients are then written side by side, where otherwise they would be put together.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxtrain.graph.bindings import same_dim
from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.pattern import Match, Pattern, Refusal
from onnxtrain.transforms.fusion.reading import made_by, part_of
from onnxtrain.types import OWN


def match(node: ir.Node) -> Match | None:
    """A gate and its factor that are the two halves of a value along an axis."""
    gate, up = node.inputs
    one, other = part_of(gate), part_of(up)
    if one is None or other is None:
        _refuse_unknown(gate, up)
        return None
    whole, axis = one.whole, one.axis
    if other.whole is not whole or other.axis != axis:
        return None
    which = int(one.begin > 0)
    first, second = (other, one) if which else (one, other)
    size = first.end + second.end - second.begin
    halves = (first.begin, first.end, second.begin, second.end) == (0, size // 2, size // 2, size)
    if not halves or whole.shape is None or whole.shape[axis] != size:
        return None
    nodes = dict.fromkeys([first.node, second.node, node])
    return Match([*nodes], _emitter(node, whole, axis, which))


def _refuse_unknown(gate: ir.Value | None, up: ir.Value | None) -> None:
    """Parts of one value along an axis of which the size is not known."""
    nodes = [made_by(value, "Slice", "Split") for value in (gate, up)]
    whole = None if nodes[0] is None else nodes[0].inputs[0]
    if whole is None or nodes[1] is None or nodes[1].inputs[0] is not whole:
        return
    if whole.shape is None or gate is None or gate.shape is None:
        raise Refusal("the shape of what the gate and its factor are parts of is not known")
    sizes = zip(whole.shape, gate.shape, strict=True)
    if any(not isinstance(n, int) and not same_dim(n, part) for n, part in sizes):
        raise Refusal("only a run can tell whether the gate and its factor are halves")


def _emitter(node: ir.Node, x: ir.Value, axis: int, gate: int) -> Callable[[Ops], ir.Value]:
    given = {name: attr.value for name, attr in node.attributes.items()}
    return lambda op: op.GatedHalves(x, axis=axis, gate=gate, **given, _domain=OWN)


PATTERN = Pattern("GatedHalves", frozenset({"Gated"}), match, OWN)
