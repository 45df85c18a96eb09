"""Gradients of operators that only change shape, layout or element type."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.gradients.known import axes_of, ints_of, operands, rank_of, to_first
from onnxtrain.gradients.rules import Grad, attribute, gradient
from onnxtrain.graph.builder import Ops
from onnxtrain.graph.torch_export.traced import is_detached


@gradient("Identity")
def identity(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy, and none of what a torch module detaches."""
    return [None if is_detached(node) else dy]


@gradient("CastLike")
def cast(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy in the element type of x."""
    x = node.inputs[0]
    assert x is not None
    return to_first(node, op.cast(dy, x))


@gradient("Reshape", "Flatten")
def reshape(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy in the shape of x."""
    x = node.inputs[0]
    assert x is not None
    return to_first(node, op.reshape_like(dy, x))


@gradient("Squeeze")
def squeeze(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The dimensions of size 1 put back."""
    x = node.inputs[0]
    assert x is not None
    axes = axes_of(node)
    if axes is None:
        return to_first(node, op.reshape_like(dy, x))
    return to_first(node, op.unsqueeze(dy, axes))


@gradient("Unsqueeze")
def unsqueeze(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The dimensions of size 1 taken out."""
    axes = axes_of(node)
    assert axes is not None
    return to_first(node, op.squeeze(dy, axes))


@gradient("Transpose")
def transpose(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The inverse permutation; without one the order is reversed, which undoes itself."""
    perm = attribute(node, "perm", None)
    if perm is None:
        return [op.Transpose(dy)]
    inverse = sorted(range(len(perm)), key=lambda axis: perm[axis])
    return [op.Transpose(dy, perm=inverse)]


@gradient("Expand")
def expand(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy summed over the copies."""
    x, _ = operands(node)
    return [op.unbroadcast(dy, to=x), None]


@gradient("Tile", since=6)
def tile(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy seen as [r0, d0, r1, d1, ...] and summed over the repeats r."""
    x, repeats = operands(node)
    copies, sizes = ints_of(repeats), op.shape(x)
    if 0 in [*(copies or ()), *(ints_of(sizes) or ())]:
        return [op.filled(0, shape_of=x, like=x), None]
    rank = rank_of(x) if copies is None else len(copies)
    if copies is not None and ints_of(sizes) is not None:
        pairs = zip(copies, ints_of(sizes) or [], strict=True)
        interleaved = op.ints([n for pair in pairs for n in pair])
    else:
        columns = op.unsqueeze(repeats, [1]), op.unsqueeze(sizes, [1])
        interleaved = op.Reshape(op.Concat(*columns, axis=1), op.ints([-1]))
    split = op.reshape_exactly(dy, interleaved)
    if rank is not None:
        return [op.reduce_sum(split, list(range(0, 2 * rank, 2)), keepdims=False), None]
    every_other = op.Range(op.const(0), op.Size(interleaved), op.const(2))
    return [op.reduce_sum(split, every_other, keepdims=False), None]


@gradient("Trilu")
def trilu(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy with the same triangle kept."""
    return to_first(node, op.Trilu(dy, *node.inputs[1:], upper=attribute(node, "upper", 1)))


@gradient("ReverseSequence")
def reverse_sequence(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Reversing twice changes nothing."""
    axes = {
        "batch_axis": attribute(node, "batch_axis", 1),
        "time_axis": attribute(node, "time_axis", 0),
    }
    return [op.ReverseSequence(dy, node.inputs[1], **axes), None]


@gradient("SpaceToDepth")
def space_to_depth(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """DepthToSpace undoes it."""
    mode = attribute(node, "mode", None)
    return [op.DepthToSpace(dy, blocksize=attribute(node, "blocksize", 1), mode=mode)]


@gradient("DepthToSpace")
def depth_to_space(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """SpaceToDepth undoes the order depth-column-row; the other is undone by hand."""
    (x,) = operands(node)
    block = attribute(node, "blocksize", 1)
    if attribute(node, "mode", "DCR") == "DCR":
        return [op.SpaceToDepth(dy, blocksize=block)]
    # each pixel of x is a block of b·b pixels of y
    sizes = op.shape(x)
    high = op.Gather(sizes, op.ints([2]), axis=0)
    wide = op.Gather(sizes, op.ints([3]), axis=0)
    batch = op.Gather(sizes, op.ints([0]), axis=0)
    side = op.ints([block])
    blocks = op.Concat(batch, op.ints([-1]), high, side, wide, side, axis=0)
    moved = op.Transpose(op.Reshape(dy, blocks), perm=[0, 1, 3, 5, 2, 4])
    return [op.reshape_like(moved, x)]


@gradient("CenterCropPad")
def center_crop_pad(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Cropping is undone by padding around the center, and the other way round."""
    x, _ = operands(node)
    axes = attribute(node, "axes", None)
    sizes = op.shape(x)
    if axes is not None:
        sizes = op.Gather(sizes, op.ints(axes), axis=0)
    return [op.CenterCropPad(dy, sizes, axes=axes), None]
