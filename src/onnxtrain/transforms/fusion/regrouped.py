"""Attention whose samples and heads are one axis for a while: [batch · head, length, size]."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.graph.bindings import same_dim
from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.keys import Operand, keys
from onnxtrain.transforms.fusion.pattern import Refusal
from onnxtrain.transforms.fusion.reading import is_op, made_by, rank

Lead = Sequence[int | ir.SymbolicDim]
"""How many samples and heads there are."""
_SWAPPED = (0, 2, 1)
"""How the axes of transposed keys are permuted."""


def regroups(node: ir.Node) -> bool:
    """Whether a node makes one axis of samples and heads, or two of one, and nothing else."""
    if not is_op(node, "Reshape") or {rank(node.inputs[0]), rank(node.outputs[0])} != {3, 4}:
        return False
    assert node.inputs[0] is not None
    before, after = node.inputs[0].shape, node.outputs[0].shape
    assert before is not None and after is not None
    matrices = zip(list(before)[-2:], list(after)[-2:], strict=True)
    return all(a != 0 and same_dim(a, b) for a, b in matrices)


def divided(node: ir.Node) -> Lead:
    """The samples and heads that such a node makes one axis of, or makes of one."""
    (four,) = (value for value in (node.inputs[0], node.outputs[0]) if rank(value) == 4)
    assert four is not None and four.shape is not None
    return list(four.shape)[:2]


def alike(leads: Sequence[Lead]) -> bool:
    """Whether samples and heads are certainly the same in values of as many matrices.

    If there are as many of the ones everywhere, there are as many of the others.
    """
    first, *others = leads
    return any(all(same_dim(lead[axis], first[axis]) for lead in others) for axis in (0, 1))


def apart(found: Operand) -> Operand:
    """An operand with samples and heads apart.

    Raises:
        Refusal: if it was not made of one that has them so.
    """
    if found.joins or rank(found.value) == 4:
        return found
    node = made_by(found.value, "Reshape")
    if node is None or not regroups(node) or found.perm not in (None, (0, 1, 2), _SWAPPED):
        raise Refusal(f"samples and heads of '{found.value.name}' were never apart")
    x = node.inputs[0]
    assert x is not None
    if found.perm != _SWAPPED:
        return Operand(x, found.factor)
    turned = keys(x)
    return dataclasses.replace(turned, factor=turned.factor * found.factor)


def is_together(value: ir.Value, scores: ir.Value) -> bool | None:
    """Whether a mask of scores has a matrix for each head of each sample, one behind the other.

    None if only a run can tell: it may be one for all.
    """
    if rank(value) is None:
        return None
    if rank(scores) != 3 or rank(value) != 3:
        return False
    assert value.shape is not None and scores.shape is not None
    if value.shape[0] == 1:
        return False
    return True if same_dim(value.shape[0], scores.shape[0]) else None


def mask_apart(op: Ops, mask: ir.Value, like: ir.Value) -> ir.Value:
    """Such a mask with samples and heads apart, as many as another value has."""
    lead = op.Gather(op.shape(like), op.ints([0, 1]))
    matrix = op.Gather(op.shape(mask), op.ints([1, 2]))
    return op.reshape_exactly(mask, op.Concat(lead, matrix, axis=0))


def together(op: Ops, x: ir.Value, shape: ir.Shape) -> ir.Value:
    """[batch, head, length, size] as the matrices of a value that has this shape."""
    dims = [d if isinstance(d, int) else -1 for d in shape]
    if dims.count(-1) <= 1 and 0 not in dims:
        return op.Reshape(x, op.ints(dims))
    sizes = op.shape(x)
    batch, head = (op.Gather(sizes, op.ints([axis])) for axis in (0, 1))
    matrix = op.Gather(sizes, op.ints([2, 3]))
    return op.reshape_exactly(x, op.Concat(op.Mul(batch, head), matrix, axis=0))
