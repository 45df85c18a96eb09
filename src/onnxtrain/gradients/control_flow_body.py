"""Bodies of control flow nodes, differentiated and cut in two.

The engine appends the backward nodes to a body; they are then taken out of it. What they read of
the body's own values is *needed*: the forward node has to hand it out, and the backward body gets
it from there. Nothing is computed twice, so random numbers are drawn once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from onnxtrain.gradients.engine import backward_in
from onnxtrain.gradients.rules import Pair
from onnxtrain.gradients.sequence import same, sum_of, zeros_like
from onnxtrain.graph.builder import Ops
from onnxtrain.graph.edit import reads
from onnxtrain.graph.phase import Phase, mark
from onnxtrain.types import ONNX, OWN

_MEASURES = frozenset(
    {
        (ONNX, "SequenceAt"),
        (ONNX, "SequenceLength"),
        (ONNX, "Shape"),
        (ONNX, "Size"),
        (OWN, "NestedShapes"),
        (OWN, "SequenceSizes"),
    }
)
"""Operators whose small results are kept in place of what they measure."""


@dataclasses.dataclass
class Half:
    """The backward half of a body.

    Attributes:
        nodes: Its nodes, which belong to no graph.
        grads: The gradient of each x that has one.
        needed: Values of the forward half that the nodes read.
    """

    nodes: list[ir.Node]
    grads: dict[ir.Value, ir.Value]
    needed: list[ir.Value]

    def rewire(self, replacements: Mapping[ir.Value, ir.Value]) -> None:
        """Read other values in place of some."""
        inside = set(deep(self.nodes))
        for old, new in replacements.items():
            for user, index in list(old.uses()):
                if user in inside:
                    user.replace_input_with(index, new)
        self.grads = {x: replacements.get(grad, grad) for x, grad in self.grads.items()}


def seed_for(y: ir.Value, name: str) -> ir.Value:
    """A stand-in for the gradient of a body's output, until it is known where that comes from."""
    return ir.Value(name=name, type=y.type, shape=y.shape)


def differentiated(
    op: Ops,
    body: ir.Graph,
    xs: Sequence[ir.Value],
    seeds: Sequence[Pair],
    fill: Sequence[ir.Value] = (),
) -> Half:
    """Cut the backward half out of a body.

    Args:
        op: Builder of the backward node.
        body: The body; rules may add outputs to its nodes.
        xs: What to differentiate by: inputs of the body, and values from outside.
        seeds: Results of the body, each with the gradient that comes in.
        fill: Those xs which get zeros if no gradient reaches them.

    Raises:
        MissingRules: naming operators of the body that have no rule.
    """
    grads, own = backward_in(body, op.graph, xs, seeds)
    inner = Ops(op.graph, f"{op.prefix}zeros/")
    for x in fill:
        if x not in grads:
            grads[x] = zeros_like(inner, x)
    for node in inner.nodes:
        mark(node, Phase.BACKWARD)
        body.append(node)
    stay = _measures(body, [*own, *inner.nodes])
    moved = [node for node in (*own, *inner.nodes) if node not in stay]
    body.remove(moved)
    return _half(op, body, moved, grads)


def _measures(body: ir.Graph, own: Sequence[ir.Node]) -> set[ir.Node]:
    """Backward nodes that only measure the forward half; they are better kept there."""
    defined = {*body.inputs, *(v for node in body if node not in own for v in node.outputs)}
    stay = set()
    for node in own:
        known = all(value in defined for value in node.inputs if not _is_constant(value))
        if known and (node.domain, node.op_type) in _MEASURES:
            stay.add(node)
            defined.update(node.outputs)
    return stay


def _is_constant(value: ir.Value | None) -> bool:
    return value is None or value.is_initializer()


def _half(op: Ops, body: ir.Graph, moved: list[ir.Node], grads: dict[ir.Value, ir.Value]) -> Half:
    read = [value for node in moved for value in reads(node)]
    read = list(dict.fromkeys([*read, *grads.values()]))
    _lift([value for value in read if value.is_initializer()], body, op.graph)
    defined = {*body.inputs, *(value for node in body for value in node.outputs)}
    return Half(moved, grads, [value for value in read if value in defined])


def _lift(constants: Iterable[ir.Value], body: ir.Graph, root: ir.Graph) -> None:
    """Move constants that both halves read to the root graph."""
    for value in constants:
        if value.graph is body and not value.is_graph_input():
            del body.initializers[str(value.name)]
            root.register_initializer(value)


def deep(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Nodes and those of their subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield from deep(attribute.as_graph())


def produced(op: Ops, grad: ir.Value, like: ir.Value, nodes: Sequence[ir.Node]) -> ir.Value:
    """A value that one of the nodes makes, since a body can only return what it makes."""
    if grad.producer() in nodes and not grad.is_graph_output():
        return grad
    return same(op, grad, like)


def body_of(
    name: str,
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    nodes: Sequence[ir.Node],
) -> ir.Graph:
    """The body of a backward node."""
    for node in nodes:
        mark(node, Phase.BACKWARD)
    return ir.Graph(inputs, outputs, nodes=nodes, name=name)


def control_node(
    op: Ops,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, object],
    like: Sequence[ir.Value],
) -> list[ir.Value]:
    """Emit a node with bodies; its outputs have the types and shapes of other values."""
    name = f"{op.prefix}{op_type}"
    node = ir.node(op_type, inputs, dict(attributes), num_outputs=len(like), name=name)  # type: ignore[arg-type]
    for index, (value, model) in enumerate(zip(node.outputs, like, strict=True)):
        value.name = f"{name}_out{index}"
        value.type, value.shape = model.type, model.shape
    op.nodes.append(node)
    return list(node.outputs)


def accumulated(op: Ops, total: ir.Value, grad: ir.Value) -> ir.Value:
    """A gradient added to what the iterations before gave."""
    if isinstance(total.type, ir.TensorType):
        result: ir.Value = op.Add(total, grad)
    else:
        result = sum_of(op, [total, grad])
    result.type, result.shape = total.type, total.shape
    return result
