"""Gradients that were left in the shape to which a value was broadcast.

The reference does not sum the gradients of what Where and Pow broadcast, and gives that of a scalar
one axis where it computes with constants of one axis. Names and shapes tell.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.graph.inference.declared import is_named
from onnxtrain.graph.names import listed
from onnxtrain.graph.phase import Phase, mark, nodes_in
from onnxtrain.transforms.reference.gradient_names import (
    forward_values,
    infer_behind,
    owner,
    trained_by,
)


@dataclasses.dataclass(frozen=True)
class Mended:
    """A gradient that is summed now.

    Attributes:
        value: What it is the gradient of.
        given: The shape that it was left in.
        summed: The gradient in the shape of the value.
    """

    value: ir.Value
    given: ir.Shape
    summed: ir.Value

    @property
    def adds(self) -> bool:
        """Whether something may be added up: axes of size 1 only change the shape."""
        lead = len(self.given) - len(self.value.shape or ())
        own = [1] * lead + list(self.value.shape or ())
        return any(want == 1 and have != 1 for want, have in zip(own, self.given, strict=True))


def sum_gradients(model: ir.Model, level: int) -> list[Mended]:
    """Sum gradients of a prepared training model that were left broadcast, in place.

    A sum is added where a gradient has axes that its value does not have, or has of size 1, and
    agrees with it in all others; what differs in another way is left for the run to refuse. It is
    added at once where the gradient comes from, before others are added to it.

    Args:
        model: The training model.
        level: Which of the callers is warned, counted from this function as 1.
    """
    found: list[Mended] = []
    while mended := _mend_first(model.graph):
        found += mended
        infer_behind(model, [one.summed for one in mended])
    if wrong := [one for one in found if one.adds]:
        _warn(wrong, level + 1)
    return found


def _mend_first(graph: ir.Graph) -> list[Mended]:
    """Sum the gradients to which no other that is to be summed leads; their shapes are certain."""
    backward = list(nodes_in(graph, Phase.BACKWARD))
    forward = forward_values(graph, backward)
    made: list[Mended] = []
    doubtful: set[ir.Value] = set()
    for node in backward:
        if not doubtful.isdisjoint(node.inputs):
            doubtful.update(node.outputs)
            continue
        for grad in node.outputs:
            of = owner(grad, forward)
            if of is not None and _is_left_broadcast(grad.shape, of.shape):
                made.append(_sum(graph, node, grad, of))
                doubtful.add(made[-1].summed)
    return made


def _is_left_broadcast(grad: ir.Shape | None, of: ir.Shape | None) -> bool:
    """Whether shapes tell that a gradient has to be summed to that of its value, and no more."""
    if grad is None or of is None or len(grad) < len(of):
        return False
    lead = len(grad) - len(of)
    pairs = list(zip(grad[lead:], of, strict=True))
    if any(isinstance(h, int) and isinstance(w, int) and w not in (1, h) for h, w in pairs):
        return False
    return lead > 0 or any(want == 1 and have != 1 and is_named(have) for have, want in pairs)


def _sum(graph: ir.Graph, node: ir.Node, grad: ir.Value, of: ir.Value) -> Mended:
    """Sum a gradient behind the node that makes it, for all that read it; the sum has its name."""
    name = str(grad.name)
    op = Ops(graph, f"{name}/")
    readers = list(grad.uses())
    grad.name = f"{op.prefix}broadcast"
    summed = op.unbroadcast(grad, to=of)
    summed.name = name
    for new in op.nodes:
        mark(new, Phase.BACKWARD)
    graph.insert_after(node, op.nodes)
    for reader, index in readers:
        reader.replace_input_with(index, summed)
    assert grad.shape is not None
    return Mended(of, grad.shape, summed)


def _warn(found: Sequence[Mended], level: int) -> None:
    """Say what is summed, and which parameters train otherwise than in the reference."""
    names = trained_by(one.summed for one in found)
    shapes = [f"'{m.value.name}' from {_text(m.given)} to {_text(m.value.shape)}" for m in found]
    warnings.warn(
        "the training model leaves gradients in the shape that values were broadcast to\n"
        f"  they are summed: {listed(shapes)}\n"
        f"  so that the whole gradient trains {listed(map(repr, names))}; "
        "onnxruntime-training takes a part of it",
        stacklevel=level,
    )


def _text(shape: ir.Shape | None) -> str:
    return f"[{', '.join(map(str, shape or ()))}]"
