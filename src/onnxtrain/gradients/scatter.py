"""Gradients of ScatterElements and ScatterND, with every way of reducing into the data."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxtrain.gradients.known import inputs_of, operands, rank_of
from onnxtrain.gradients.reduction import nonzero, other_zeros
from onnxtrain.gradients.rules import Grad, attribute, forwarded, gradient
from onnxtrain.gradients.vector_jacobian import pulled_back
from onnxtrain.graph.builder import Ops


@dataclasses.dataclass(frozen=True)
class _Places:
    """The places of a scatter: write to them and read from them."""

    op: Ops
    indices: ir.Value
    axis: int | None

    def put(self, data: ir.Value, updates: ir.Value, reduction: str | None = None) -> ir.Value:
        """The data with updates written to, or reduced into, the places."""
        if self.axis is None:
            return self.op.ScatterND(data, self.indices, updates, reduction=reduction)
        return self.op.ScatterElements(
            data, self.indices, updates, axis=self.axis, reduction=reduction
        )

    def get(self, data: ir.Value) -> ir.Value:
        """What the data holds at the places."""
        if self.axis is None:
            return self.op.GatherND(data, self.indices)
        return self.op.GatherElements(data, self.indices, axis=self.axis)


@gradient("ScatterElements")
def scatter_elements(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """By reduction: overwritten data gets 0, the updates get what became of them."""
    return _scatter(op, node, dy, attribute(node, "axis", 0))


@gradient("Scatter")
def scatter(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """ScatterElements before it had that name; what picks elements came later, so torch does."""
    return pulled_back(op, node, [dy])


@gradient("ScatterND")
def scatter_nd(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The same as ScatterElements, with places given by tuples."""
    return _scatter(op, node, dy, None)


def _scatter(op: Ops, node: ir.Node, dy: ir.Value, axis: int | None) -> list[Grad]:
    data, indices, updates = operands(node)
    places = _Places(op, indices, axis)
    reduction = attribute(node, "reduction", "none")
    if reduction == "none":
        covered = places.put(dy, op.filled(0, shape_of=updates, like=dy))
        return [covered, None, places.get(dy)]
    if reduction == "add":
        return [dy, None, places.get(dy)]
    if reduction == "mul":
        return [places.put(dy, updates, "mul"), None, _factors(op, places, data, updates, dy)]
    return _extremes(op, places, data, updates, node.outputs[0], dy)


def _factors(op: Ops, places: _Places, data: ir.Value, updates: ir.Value, dy: ir.Value) -> ir.Value:
    """dy times the product of the data and all other updates at the same place.

    The product of all is divided by the update itself, with updates that are 0 left out of it.
    """

    def total(values: ir.Value) -> ir.Value:
        return places.get(places.put(op.filled(0, shape_of=data, like=data), values, "add"))

    safe = nonzero(op, updates)
    product = op.Div(places.get(op.Mul(dy, places.put(data, safe, "mul"))), safe)
    return other_zeros(op, updates, total, product)


def _extremes(
    op: Ops, places: _Places, data: ir.Value, updates: ir.Value, y: ir.Value, dy: ir.Value
) -> list[Grad]:
    """dy to whichever is the largest (smallest); ties share it evenly."""
    kept = op.cast(op.Equal(data, y), dy)
    came = op.cast(op.Equal(updates, places.get(y)), dy)
    share = op.Div(dy, places.put(kept, came, "add"))
    return [op.Mul(share, kept), None, op.Mul(places.get(share), came)]


@gradient("TensorScatter")
def tensor_scatter(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The cache gets dy except where it was overwritten, the update gets the rest."""
    cache, update, start = inputs_of(node, 3)
    assert cache is not None and update is not None
    options = forwarded(node)
    nothing = op.filled(0, shape_of=update, like=dy)
    kept = op.TensorScatter(dy, nothing, start, **options)
    axis = attribute(node, "axis", -2)
    length, room = (op.Gather(op.shape(v), op.const(axis), axis=0) for v in (update, cache))
    places = _along(op, op.Range(op.const(0), length, op.const(1)), axis, update)
    if start is not None:
        places = op.Add(_column(op, start, update), places)
    if attribute(node, "mode", "linear") == "circular":
        places = op.Mod(places, room)
    everywhere = op.Expand(places, op.shape(update))
    return [kept, op.GatherElements(dy, everywhere, axis=axis), None][: len(node.inputs)]


def _along(op: Ops, steps: ir.Value, axis: int, update: ir.Value) -> ir.Value:
    """A vector along an axis, with axes of size 1 behind it as the update has them."""
    rank = rank_of(update)
    if axis >= 0 and rank is not None:
        axis -= rank
    if axis < 0:
        return op.unsqueeze(steps, list(range(1, -axis)))
    ones = op.Expand(op.ints([1]), op.Shape(op.Shape(update)))
    return op.Reshape(steps, op.ScatterElements(ones, op.ints([axis]), op.ints([-1])))


def _column(op: Ops, start: ir.Value, update: ir.Value) -> ir.Value:
    """A number for each sample, with as many axes as the update has."""
    rank = rank_of(update)
    if rank is not None:
        return op.unsqueeze(start, list(range(1, rank)))
    ones = op.Expand(op.ints([1]), op.Sub(op.Shape(op.Shape(update)), op.ints([1])))
    return op.Reshape(start, op.Concat(op.ints([-1]), ones, axis=0))
