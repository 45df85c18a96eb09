"""Products of matrices by sample and head, written with both in one axis for the time of it.

TensorFlow's einsums become [batch, head, length, 1, size], reshaped to [batch·head, length, size]
for a product, and the result back. Without the axes of one element, and the reshaping, they are
what attention is recognised by.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnxtrain.graph.bindings import same_dim
from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.counts import axes_of
from onnxtrain.transforms.fusion.pattern import Match, Pattern
from onnxtrain.transforms.fusion.reading import is_op, made_by, only_reader, rank

_LEAD = 2
"""Axes in front of the matrices: samples and heads."""
_SWAPPED = (0, 2, 1)
_WITH_AXIS = 5
Dims = Sequence[int | ir.SymbolicDim]


@dataclasses.dataclass(frozen=True)
class _Matrices:
    """Matrices by sample and head.

    Attributes:
        value: What they are made of.
        dims: Their sizes.
        perm: How the axes of the value are permuted first, None for not at all.
        unit: An axis of one element that goes away then, None for none.
        swapped: Whether rows and columns change places in the end.
    """

    value: ir.Value
    dims: Dims
    perm: Sequence[int] | None
    unit: int | None
    swapped: bool

    def emit(self, op: Ops) -> ir.Value:
        """The matrices."""
        value, perm = self.value, self.perm
        if self.unit is not None:
            value = op.squeeze(value, [self.unit])
        order = list(range(len(self.dims)) if perm is None else perm)
        if self.swapped:
            order[-2:] = order[:-3:-1]
        return value if order == sorted(order) else op.Transpose(value, perm=order)


def match(product: ir.Node) -> Match | None:
    """Such a product, with what takes its samples and heads apart."""
    left, right = (_matrices(value) for value in product.inputs)
    back = only_reader(product.outputs[0], "Reshape")
    if left is None or right is None or back is None:
        return None
    if not _same(left.dims[:_LEAD], right.dims[:_LEAD]):
        return None
    rows, columns = left.dims[-1 - (not left.swapped)], right.dims[-1 - right.swapped]
    wanted = [*left.dims[:_LEAD], rows, columns]
    dims = back.outputs[0].shape
    if dims is None or len(dims) != _WITH_AXIS:
        return None
    places = [axis for axis in range(_LEAD, _WITH_AXIS) if _same(_less(dims, axis), wanted)]
    places = [axis for axis in places if dims[axis] == 1]
    if not places:
        return None
    squeeze = only_reader(back.outputs[0], "Squeeze")
    taken = None if squeeze is None else _single(squeeze)
    nodes = [product, back]
    if squeeze is not None and taken in places:
        nodes.append(squeeze)

    def emit(op: Ops) -> ir.Value:
        made: ir.Value = op.MatMul(left.emit(op), right.emit(op))
        return made if len(nodes) == 3 else op.unsqueeze(made, places[:1])

    return Match(nodes, emit)


def _matrices(value: ir.Value | None) -> _Matrices | None:
    """Matrices whose samples and heads are one axis of a value, if they were two before."""
    turn = made_by(value, "Transpose")
    swapped = turn is not None and tuple(turn.attributes.get_ints("perm", ())) == _SWAPPED
    joined = made_by(turn.inputs[0] if swapped and turn is not None else value, "Reshape")
    data = None if joined is None else joined.inputs[0]
    if joined is None or data is None or data.shape is None or len(data.shape) != _WITH_AXIS:
        return None
    flat = joined.outputs[0].shape
    if flat is None or len(flat) != _WITH_AXIS - _LEAD:
        return None
    for axis in range(_LEAD, _WITH_AXIS - 1):
        dims = _less(data.shape, axis)
        if data.shape[axis] == 1 and _same(dims[_LEAD:], list(flat)[1:]) and 0 not in dims:
            return _without(data, dims, axis, swapped)
    return None


def _without(data: ir.Value, dims: Dims, axis: int, swapped: bool) -> _Matrices:
    """Matrices without an axis of one element; the one that was put in is left out."""
    turn = made_by(data, "Transpose")
    perm = None if turn is None else list(turn.attributes.get_ints("perm", ()))
    if turn is not None and perm and turn.inputs[0] is not None:
        data, axis = turn.inputs[0], perm[axis]
        perm = [one - (one > axis) for one in perm if one != axis]
    else:
        perm = None
    put_in = made_by(data, "Unsqueeze")
    if put_in is not None and put_in.inputs[0] is not None and _single(put_in) == axis:
        return _Matrices(put_in.inputs[0], dims, perm, None, swapped)
    return _Matrices(data, dims, perm, axis, swapped)


def _less(dims: Iterable[int | ir.SymbolicDim], axis: int) -> list[int | ir.SymbolicDim]:
    return [size for place, size in enumerate(dims) if place != axis]


def _same(some: Dims, others: Dims) -> bool:
    return len(some) == len(others) and all(map(same_dim, some, others))


def _single(node: ir.Node) -> int | None:
    """The one axis that a Squeeze or an Unsqueeze names."""
    axes = axes_of(node)
    larger = node.inputs[0] if is_op(node, "Squeeze") else node.outputs[0]
    size = rank(larger)
    return None if axes is None or len(axes) != 1 or size is None else axes[0] % size


PATTERN = Pattern("BatchedMatMul", frozenset({"MatMul"}), match)
