"""The gradient of If: an If with the same condition, whose branches go back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxtrain.gradients.control_flow_body import (
    Half,
    body_of,
    control_node,
    differentiated,
    produced,
    seed_for,
)
from onnxtrain.gradients.control_flow_keep import SEQUENCES_SINCE
from onnxtrain.gradients.control_flow_optional import without_value
from onnxtrain.gradients.rules import Grad, Pair, gradient
from onnxtrain.gradients.sequence import same, zeros_like
from onnxtrain.graph.builder import Ops
from onnxtrain.graph.edit import reads

BRANCHES = ("then_branch", "else_branch")


@gradient("If", captures=True)
def if_(op: Ops, node: ir.Node, dys: Sequence[Grad], wanted: Sequence[ir.Value]) -> list[Pair]:
    """Gradients of what the branches capture: those of the branch that ran."""
    branches = {name: node.attributes[name].as_graph() for name in BRANCHES}
    halves = {name: _half(op, branch, dys, wanted) for name, branch in branches.items()}
    found = [x for x in wanted if any(x in half.grads for half in halves.values())]
    if not found:
        return []
    back = {}
    for name, half in halves.items():
        kept = {value: _kept(op, node, branches, name, value) for value in half.needed}
        back[name] = _branch(op, name, half, kept, found)
    return list(zip(found, control_node(op, "If", node.inputs, back, found), strict=True))


def _half(op: Ops, branch: ir.Graph, dys: Sequence[Grad], wanted: Sequence[ir.Value]) -> Half:
    """The backward half of a branch, which reads the gradients from outside."""
    incoming = [(y, dy) for y, dy in zip(branch.outputs, dys, strict=False) if dy is not None]
    seeds = [(y, seed_for(y, str(dy.name))) for y, dy in incoming]
    half = differentiated(op, branch, wanted, seeds)
    half.rewire({seed: dy for (_, seed), (_, dy) in zip(seeds, incoming, strict=True)})
    return half


def _kept(
    op: Ops, node: ir.Node, branches: dict[str, ir.Graph], name: str, value: ir.Value
) -> ir.Value:
    """The output of the If that hands out a value of one branch; the other gives anything."""
    own = branches[name]
    if value in own.outputs:
        output = node.outputs[list(own.outputs).index(value)]
    else:
        node.resize_outputs(len(node.outputs) + 1)
        output = node.outputs[-1]
        output.type = value.type
        for key, branch in branches.items():
            branch.outputs.append(value if key == name else _nothing(op, node, branch, value))
    output.name = output.name or f"{op.prefix}{value.name}"
    return output


def _nothing(op: Ops, node: ir.Node, branch: ir.Graph, like: ir.Value) -> ir.Value:
    """A value that nobody reads, in the type of another and a shape that fits it."""
    inner = Ops(op.graph, f"{op.prefix}nothing/")
    assert like.dtype is not None
    if isinstance(like.type, ir.OptionalType):
        empty = without_value(inner, like)
    elif isinstance(like.type, ir.SequenceType):
        empty = inner.SequenceEmpty(dtype=int(like.dtype))
    elif op.opset < SEQUENCES_SINCE and (told := _sizes(inner, node, like)) is not None:
        empty = inner.Expand(inner.scalar(0, like), told)
    elif like.shape is None or 0 in like.shape or not like.shape.is_static():
        sizes = [0] if like.shape is None else [d if isinstance(d, int) else 0 for d in like.shape]
        empty = inner.Identity(inner.const(np.zeros(sizes), like.dtype))
    else:
        empty = inner.filled(0, like, like)
    branch.extend(inner.nodes)
    return empty


def _sizes(op: Ops, node: ir.Node, like: ir.Value) -> ir.Value | None:
    """The shape of a value of a branch, if what the If reads tells it.

    Loops that cannot keep sequences stack the value of every iteration, whichever branch ran.
    """
    sizes = []
    known = [value for value in reads(node) if value.shape is not None]
    for dim in like.shape or [None]:
        if isinstance(dim, int):
            sizes.append(op.ints([dim]))
            continue
        named = [(v, axis) for v in known for axis, size in enumerate(v.shape or ()) if size == dim]
        if dim is None or dim.value is None or not named:
            return None
        value, axis = named[0]
        sizes.append(op.slice(op.Shape(value), axis, axis + 1))
    return op.Concat(*sizes, axis=0)


def _branch(
    op: Ops,
    name: str,
    half: Half,
    kept: dict[ir.Value, ir.Value],
    found: Sequence[ir.Value],
) -> ir.Graph:
    """A branch of the backward If."""
    first, last = (Ops(op.graph, f"{op.prefix}{name}/{part}/") for part in ("kept", "grads"))
    half.rewire({value: same(first, output, value) for value, output in kept.items()})
    results = []
    for x in found:
        grad = half.grads[x] if x in half.grads else zeros_like(last, x)
        fresh = [node for node in (*half.nodes, *last.nodes) if grad not in results]
        results.append(produced(last, grad, x, fresh))
    return body_of(f"{op.prefix}{name}", [], results, [*first.nodes, *half.nodes, *last.nodes])
