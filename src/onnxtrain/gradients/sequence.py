"""Gradients of sequences and optionals.

The gradient of a sequence is a sequence of gradients with as many elements; that of an optional is
an optional which has a value if it has one.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.known import ints_of, operands, to_first
from onnxtrain.gradients.rules import Grad, attribute, gradient, no_gradient
from onnxtrain.graph.builder import Ops
from onnxtrain.types import OWN, DataType

_IDENTITY_OF_ALL = 16
"""The first opset whose Identity takes sequences and optionals."""
no_gradient("NestedShapes", "NestedZeros", "SequenceSizes", domain=OWN)


def zeros_like(op: Ops, value: ir.Value) -> ir.Value:
    """Zeros in the form of a tensor, a sequence or an optional."""
    if isinstance(value.type, ir.TensorType):
        return op.filled(0, shape_of=value, like=value)
    assert value.dtype is not None and value.type is not None
    optional = isinstance(value.type, ir.OptionalType)
    inner = value.type.elem_type if optional else value.type
    zeros: ir.Value = op.NestedZeros(
        op.NestedShapes(value, _domain=OWN),
        dtype=int(value.dtype),
        sequence=int(isinstance(inner, ir.SequenceType)),
        optional=int(optional),
        _domain=OWN,
    )
    return zeros


def same(op: Ops, value: ir.Value, like: ir.Value) -> ir.Value:
    """A value under another name, typed like a third; old forms of Identity take tensors only."""
    tensor = isinstance(like.type, ir.TensorType) or op.opset >= _IDENTITY_OF_ALL
    copied: ir.Value = op.Identity(value) if tensor else op.NestedSum(value, _domain=OWN)
    copied.type, copied.shape = like.type, like.shape
    return copied


def sum_of(op: Ops, terms: Sequence[ir.Value]) -> ir.Value:
    """The sum of gradients of one sequence or optional.

    A gradient that has a single element besides zeros is added to that element of the others.
    """
    single = [term for term in terms[1:] if _is_single(term)]
    others = [term for term in terms if term not in single]
    total: ir.Value = others[0] if len(others) == 1 else op.NestedSum(*others, _domain=OWN)
    for term in single:
        made = term.producer()
        assert made is not None
        total = op.SequenceAddAt(total, *made.inputs[1:], _domain=OWN)
    return total


def _is_single(grad: ir.Value) -> bool:
    """Whether a gradient is that of one element, as the rule of SequenceAt gives it."""
    made = grad.producer()
    if made is None or made.op_type != "SequenceAddAt" or made.inputs[0] is None:
        return False
    zeros = made.inputs[0].producer()
    return zeros is not None and zeros.op_type == "NestedZeros"


@gradient("SequenceConstruct")
def sequence_construct(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Each input gets its element."""
    return [op.SequenceAt(dy, op.const(index)) for index in range(len(node.inputs))]


@gradient("SequenceAt")
def sequence_at(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Zeros, and dy at the position."""
    sequence, position = operands(node)
    return [op.SequenceAddAt(zeros_like(op, sequence), position, dy, _domain=OWN), None]


@gradient("SequenceInsert")
def sequence_insert(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The element at the position for the tensor, the others for the sequence."""
    at = _inserted_at(op, node.inputs[2] if len(node.inputs) > 2 else None)
    return [op.SequenceErase(dy, at), op.SequenceAt(dy, at), None][: len(node.inputs)]


def _inserted_at(op: Ops, position: Grad) -> ir.Value:
    """Where the new element of a sequence is; counted from the end there is one more behind it."""
    if position is None:
        return op.const(-1)
    known = ints_of(position)
    if known is not None:
        return op.const(known[0] - (known[0] < 0))
    one, zero = op.scalar(1, position), op.scalar(0, position)
    return op.where(op.Less(position, zero), op.Sub(position, one), position)


@gradient("SequenceErase")
def sequence_erase(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy with zeros where the element was taken away."""
    sequence = node.inputs[0]
    assert sequence is not None
    position = node.inputs[1] if len(node.inputs) > 1 else op.const(-1)
    assert position is not None
    zeros = zeros_like(op, op.SequenceAt(sequence, position))
    at = op.cast(position, DataType.INT64)
    known = ints_of(position)
    if known is None or known[0] < 0:
        from_start = op.Add(op.SequenceLength(sequence), at)
        at = from_start if known else op.where(op.Less(at, op.const(0)), from_start, at)
    return to_first(node, op.SequenceInsert(dy, zeros, at))


@gradient("SplitToSequence")
def split_to_sequence(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The pieces put together again."""
    x = node.inputs[0]
    assert x is not None
    whole = len(node.inputs) > 1 or attribute(node, "keepdims", 1)
    axis = attribute(node, "axis", 0)
    joined = op.SequenceJoin(dy, op.shape(x), axis=axis, new_axis=int(not whole), _domain=OWN)
    return to_first(node, joined)


@gradient("ConcatFromSequence")
def concat_from_sequence(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy cut into as long pieces as were joined."""
    return _pieces(op, node, dy)


@gradient("SequenceJoin", domain=OWN)
def sequence_join(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy cut into as long pieces as were joined."""
    return _pieces(op, node, dy)


def _pieces(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    sequence = node.inputs[0]
    axis = attribute(node, "axis", 0)
    if attribute(node, "new_axis", 0):
        return to_first(node, op.SplitToSequence(dy, axis=axis, keepdims=0))
    sizes = op.SequenceSizes(sequence, axis=axis, _domain=OWN)
    return to_first(node, op.SplitToSequence(dy, sizes, axis=axis))


@gradient("Optional")
def optional(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """What the optional holds."""
    return [op.OptionalGetElement(dy)] if node.inputs else []


@gradient("OptionalGetElement")
def optional_get_element(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy as an optional; newer versions take a plain value as well."""
    (value,) = operands(node)
    return [op.Optional(dy) if isinstance(value.type, ir.OptionalType) else dy]


@gradient("NestedSum", domain=OWN)
def nested_sum(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy for each summand."""
    return [dy] * len(node.inputs)


@gradient("SequenceAddAt", domain=OWN)
def sequence_add_at(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy for the sequence, its element at the position for the tensor."""
    return [dy, None, op.SequenceAt(dy, node.inputs[1])]


@gradient("SequenceConcat", domain=OWN)
def sequence_concat(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy cut where the second sequence begins."""
    return list(op.SequenceCut(dy, op.SequenceLength(node.inputs[1]), _outputs=2, _domain=OWN))


@gradient("SequenceCut", domain=OWN, all_outputs=True)
def sequence_cut(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """Both gradients put together again, zeros for the one that nobody used."""
    parts = [
        zeros_like(op, value) if dy is None else dy
        for value, dy in zip(node.outputs, dys, strict=True)
    ]
    return [op.SequenceConcat(*parts, _domain=OWN), None]
