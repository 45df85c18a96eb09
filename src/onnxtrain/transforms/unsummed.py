"""Gradients that were left in the shape to which a value was broadcast.

The reference does not sum the gradients of what Where and Pow broadcast, and gives that of a scalar
one axis where it computes with constants of one axis. Names and shapes tell: ``t_grad``, or each of
``t_grad_0``, ``t_grad_1``, ... that are added up, is a gradient of ``t`` and has its shape.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.graph.declared import UNTOLD, is_named
from onnxtrain.graph.phase import Phase, mark, nodes_in
from onnxtrain.graph.prepare import complete
from onnxtrain.transforms.training_graph import BUFFER_SUFFIX

_GRADIENT = re.compile(r"(?P<of>.+)_grad(_\d+)?", re.DOTALL)
_MOST = 8
"""How many names a warning has."""


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
        _forget(_reached(one.summed for one in mended))
        complete(model)
    if wrong := [one for one in found if one.adds]:
        _warn(wrong, level + 1)
    return found


def _mend_first(graph: ir.Graph) -> list[Mended]:
    """Sum the gradients to which no other that is to be summed leads; their shapes are certain."""
    backward = list(nodes_in(graph, Phase.BACKWARD))
    forward = _forward(graph, backward)
    made: list[Mended] = []
    doubtful: set[ir.Value] = set()
    for node in backward:
        if not doubtful.isdisjoint(node.inputs):
            doubtful.update(node.outputs)
            continue
        for grad in node.outputs:
            of = _owner(grad, forward)
            if of is not None and _is_left_broadcast(grad.shape, of.shape):
                made.append(_sum(graph, node, grad, of))
                doubtful.add(made[-1].summed)
    return made


def _forward(graph: ir.Graph, backward: Sequence[ir.Node]) -> dict[str, ir.Value]:
    """What may have a gradient by name."""
    later = set(backward)
    values = [*graph.inputs, *(v for node in graph if node not in later for v in node.outputs)]
    return {str(value.name): value for value in values if value.name}


def _owner(grad: ir.Value, forward: Mapping[str, ir.Value]) -> ir.Value | None:
    """What a value is the gradient of, None if it is none."""
    found = _GRADIENT.fullmatch(grad.name or "")
    return None if found is None else forward.get(found["of"])


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


def _reached(values: Iterable[ir.Value]) -> Iterator[ir.Node]:
    """The nodes to which values lead."""
    seen: set[ir.Node] = set()
    open_ = [reader for value in values for reader in value.consumers()]
    while open_:
        node = open_.pop()
        if node not in seen:
            seen.add(node)
            yield node
            open_ += [reader for value in node.outputs for reader in value.consumers()]


def _forget(nodes: Iterable[ir.Node]) -> None:
    """Let shapes be inferred again that followed from others."""
    for node in nodes:
        if node.op_type not in UNTOLD:
            for value in node.outputs:
                value.shape = None


def _warn(found: Sequence[Mended], level: int) -> None:
    """Say what is summed, and which parameters train otherwise than in the reference."""
    reached = list(_reached(one.summed for one in found))
    buffers = [str(v.name) for node in reached for v in node.inputs if v is not None]
    names = {n.removesuffix(BUFFER_SUFFIX) for n in buffers if n.endswith(BUFFER_SUFFIX)}
    shapes = [f"'{m.value.name}' from {_text(m.given)} to {_text(m.value.shape)}" for m in found]
    warnings.warn(
        "the training model leaves gradients in the shape that values were broadcast to\n"
        f"  they are summed: {_listed(shapes)}\n"
        f"  so that the whole gradient trains {_listed(sorted(map(repr, names)))}; "
        "onnxruntime-training takes a part of it",
        stacklevel=level,
    )


def _text(shape: ir.Shape | None) -> str:
    return f"[{', '.join(map(str, shape or ()))}]"


def _listed(texts: Sequence[str]) -> str:
    """The first of several texts, and how many more there are."""
    more = f" and {len(texts) - _MOST} more" if len(texts) > _MOST else ""
    return ", ".join(texts[:_MOST]) + more
