"""Queries and keys as they were before they were scaled and transposed for the product."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxtrain.graph.bindings import same_dim
from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.reading import factor_of, made_by, rank


@dataclasses.dataclass(frozen=True)
class Operand:
    """A value up to a factor and a permutation of its axes.

    Attributes:
        value: The value.
        factor: What it is multiplied by.
        perm: How its axes are to be permuted, None for not at all.
    """

    value: ir.Value
    factor: float = 1.0
    perm: tuple[int, ...] | None = None

    @property
    def lead(self) -> list[int | ir.SymbolicDim]:
        """Sizes of all axes but the last two, which are those of matrices."""
        assert self.value.shape is not None
        dims = list(self.value.shape)
        return [dims[axis] for axis in self.perm or range(len(dims))][:-2]

    def emit(self, op: Ops) -> ir.Value:
        """The value with its axes in order; the factor is left out."""
        if self.perm is None or self.perm == tuple(range(len(self.perm))):
            return self.value
        return op.Transpose(self.value, perm=list(self.perm))


def queries(value: ir.Value) -> Operand:
    """Queries without their factor."""
    return unscaled(Operand(value))


def keys(value: ir.Value) -> Operand:
    """Keys of transposed keys, without a factor."""
    size = rank(value)
    assert size is not None
    swap = (*range(size - 2), size - 1, size - 2)
    found = unscaled(Operand(value))
    turned = made_by(found.value, "Transpose")
    if turned is not None and turned.inputs[0] is not None:
        perm = turned.attributes.get_ints("perm", None)
        order = tuple(perm) if perm is not None else tuple(reversed(range(size)))
        joined = tuple(order[axis] for axis in swap)
        return unscaled(dataclasses.replace(found, value=turned.inputs[0], perm=joined))
    flat = _swapped_flat(found.value)
    if flat is not None:
        return unscaled(dataclasses.replace(found, value=flat))
    return dataclasses.replace(found, perm=swap)


def unscaled(found: Operand) -> Operand:
    """An operand with the numbers that it is multiplied by taken out."""
    node = found.value.producer()
    while node is not None and (scaled := factor_of(node)) is not None:
        found = dataclasses.replace(found, value=scaled[0], factor=found.factor * scaled[1])
        node = found.value.producer()
    return found


def _swapped_flat(value: ir.Value) -> ir.Value | None:
    """What has its last two axes swapped in the way of Reshape, Transpose and Reshape.

    [a, b, c, d] -> [ab, c, d] -> [ab, d, c] -> [a, b, d, c].
    """
    last = made_by(value, "Reshape")
    turned = None if last is None else made_by(last.inputs[0], "Transpose")
    first = None if turned is None else made_by(turned.inputs[0], "Reshape")
    x = None if first is None else first.inputs[0]
    if turned is None or first is None or x is None or x.shape is None or value.shape is None:
        return None
    flat = first.outputs[0].shape
    if list(turned.attributes.get_ints("perm", ())) != [0, 2, 1] or flat is None:
        return None
    before, after = list(x.shape), list(value.shape)
    if len(after) != len(before) or len(flat) != 3:
        return None
    matrices = all(same_dim(a, b) for a, b in zip(list(flat)[1:], before[-2:], strict=True))
    swapped = [*before[:-2], before[-1], before[-2]]
    others = sum(not same_dim(a, b) for a, b in zip(after, swapped, strict=True))
    return x if matrices and others <= 1 else None  # as many elements: the one is the same, too
