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
        joins: Whether its second and third axis are one before that.
    """

    value: ir.Value
    factor: float = 1.0
    perm: tuple[int, ...] | None = None
    joins: bool = False

    @property
    def sizes(self) -> list[int | ir.SymbolicDim] | None:
        """Sizes of the axes before they are permuted, None if they are not known."""
        if self.value.shape is None:
            return None
        dims = list(self.value.shape)
        return _joined(dims) if self.joins else dims

    @property
    def lead(self) -> list[int | ir.SymbolicDim]:
        """Sizes of all axes but the last two, which are those of matrices."""
        dims = self.sizes
        assert dims is not None
        return [dims[axis] for axis in self.perm or range(len(dims))][:-2]

    def emit(self, op: Ops) -> ir.Value:
        """The value with its axes in order; the factor is left out."""
        value = self.value
        if self.joins and (dims := self.sizes) is not None:
            value = op.Reshape(value, op.ints([0, int(str(dims[1])), -1, int(str(dims[3]))]))
        if self.perm is None or self.perm == tuple(range(len(self.perm))):
            return value
        return op.Transpose(value, perm=list(self.perm))


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
    repeated = _repeated_flat(found.value)
    if repeated is not None:
        return dataclasses.replace(found, value=repeated, joins=True)
    return dataclasses.replace(found, perm=swap)


def unscaled(found: Operand) -> Operand:
    """An operand with the numbers that it is multiplied by taken out."""
    node = found.value.producer()
    while node is not None and (scaled := factor_of(node)) is not None:
        found = dataclasses.replace(found, value=scaled[0], factor=found.factor * scaled[1])
        node = found.value.producer()
    return found


def _turned_flat(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """What Reshape, Transpose of the last two of three axes, and Reshape make a value of.

    The second is what the first of them gives; all shapes are known.
    """
    last = made_by(value, "Reshape")
    turned = None if last is None else made_by(last.inputs[0], "Transpose")
    first = None if turned is None else made_by(turned.inputs[0], "Reshape")
    x = None if first is None else first.inputs[0]
    if turned is None or first is None or x is None or x.shape is None or value.shape is None:
        return None
    flat = first.outputs[0]
    if list(turned.attributes.get_ints("perm", ())) != [0, 2, 1] or rank(flat) != 3:
        return None
    return x, flat


def _swapped_flat(value: ir.Value) -> ir.Value | None:
    """What has its last two axes swapped in the way of Reshape, Transpose and Reshape.

    [a, b, c, d] -> [ab, c, d] -> [ab, d, c] -> [a, b, d, c].
    """
    found = _turned_flat(value)
    if found is None:
        return None
    x, flat = found
    assert x.shape is not None and flat.shape is not None and value.shape is not None
    before, after = list(x.shape), list(value.shape)
    if len(after) != len(before):
        return None
    matrices = all(same_dim(a, b) for a, b in zip(list(flat.shape)[1:], before[-2:], strict=True))
    swapped = [*before[:-2], before[-1], before[-2]]
    others = sum(not same_dim(a, b) for a, b in zip(after, swapped, strict=True))
    return x if matrices and others <= 1 else None  # as many elements: the one is the same, too


def _repeated_flat(value: ir.Value) -> ir.Value | None:
    """The same for heads that were repeated: [a, b, n, c, d] -> [abn, c, d] -> [a, bn, d, c]."""
    found = _turned_flat(value)
    if found is None or rank(found[0]) != 5 or rank(value) != 4:
        return None
    x, flat = found
    assert x.shape is not None and flat.shape is not None and value.shape is not None
    before, (samples, heads, size, length) = list(x.shape), value.shape
    if not isinstance(before[1], int) or not isinstance(before[2], int):
        return None
    if not isinstance(size, int) or 0 in before:
        return None
    joined = _joined(before)
    pairs = zip(joined, (samples, heads, length, size), strict=True)
    matrices = zip(before[-2:], list(flat.shape)[1:], strict=True)
    return x if all(same_dim(a, b) for a, b in (*pairs, *matrices)) else None


def _joined(dims: list[int | ir.SymbolicDim]) -> list[int | ir.SymbolicDim]:
    """Sizes with the second and the third axis as one, both of which are known."""
    samples, heads, times, *matrix = dims
    assert isinstance(heads, int) and isinstance(times, int)
    return [samples, heads * times, *matrix]
