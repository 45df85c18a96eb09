"""Indexing, joining and reshaping: Gather and Slice gradients, Concat and Split by data."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import ANY, INT64, op, optional, required
from onnxtrain.graph.schemas.facts import Dim, Facts, Shape
from onnxtrain.graph.schemas.infer import (
    at,
    content,
    fixed,
    fixed_shape,
    given_by,
    given_by_each,
    normalize,
    of,
    same_as,
    typed,
)
from onnxtrain.types import FIXED, FLOATS, INTS, ONNX, OWN, DataType


def gathered_nd(facts: Facts, output: int) -> Shape | None:
    """indices.shape[:-1] + data.shape[batch_dims + indices.shape[-1]:]."""
    data, indices = facts.shape(0), facts.shape(1)
    depth = at(indices, -1)
    if data is None or indices is None or not isinstance(depth, int):
        return None
    return indices[:-1] + data[(facts.integer("batch_dims") or 0) + depth :]


def part(facts: Facts, output: int) -> Shape | None:
    """The input with its axis cut to the size of one part; no sizes means equal parts."""
    shape = facts.shape(0)
    axis = None if shape is None else normalize(facts.integer("axis"), len(shape))
    if shape is None or axis is None:
        return None
    sizes, whole = facts.numbers(1), shape[axis]
    if sizes == () and isinstance(whole, int):
        sizes = (whole // facts.outputs,) * facts.outputs
    return shape[:axis] + (at(sizes, output),) + shape[axis + 1 :]


def joined(facts: Facts, output: int) -> Shape | None:
    """The inputs' common shape with their sizes along the axis added up."""
    return _joined(facts, facts.integer("axis"))


def beside(facts: Facts, output: int) -> Shape | None:
    """The inputs side by side along their last axis; the second output has that axis alone."""
    shape = _joined(facts, -1)
    return shape if output == 0 else (at(shape, -1),)


def _joined(facts: Facts, along: int | None) -> Shape | None:
    shapes = [shape for shape in map(facts.shape, range(facts.inputs)) if shape is not None]
    if not shapes or len({len(shape) for shape in shapes}) > 1:
        return None
    axis = normalize(along, len(shapes[0]))
    if axis is None:
        return None
    result = [_agreed(sizes) for sizes in zip(*shapes, strict=True)]
    lengths = [shape[axis] for shape in shapes]
    known = [length for length in lengths if isinstance(length, int)]
    result[axis] = sum(known) if len(known) == facts.inputs else None
    return tuple(result)


def unflattened(facts: Facts, output: int) -> Shape | None:
    """unflatten_dims + input.shape[1:]."""
    rows, dims = facts.shape(0), content(facts, 2) or (None, None)
    return None if rows is None else dims + rows[1:]


def unpadded(facts: Facts, output: int) -> Shape | None:
    """indices.shape + input.shape[2:]."""
    padded, indices = facts.shape(0), facts.shape(1)
    return None if padded is None else (at(indices, 0),) + padded[2:]


def _agreed(sizes: tuple[Dim, ...]) -> Dim:
    """The most definite of sizes that must be equal: a number, else a symbol."""
    numbers = [size for size in sizes if isinstance(size, int)]
    symbols = [size for size in sizes if isinstance(size, str)]
    return (numbers or symbols or [None])[0]


OPS = (
    op(
        "GatherGrad",
        "shape: I, indices: Tind, dY: T -> dX: T",
        I=INTS,
        T=FLOATS,
        Tind=INTS,
        axis=0,
        infer=typed(of(2), given_by(0)),
    ),
    op(
        "GatherGradAdd",
        "indices: Tind, dY: T, base: T -> dX: T",
        domain=OWN,
        T=FLOATS,
        Tind=INTS,
        infer=same_as(2),
    ),
    op(
        "ConcatSum",
        "inputs+: T -> Y: T, sums: T",
        domain=OWN,
        T=FLOATS,
        infer=typed(of(0), beside),
    ),
    op(
        "GatherElementsGrad",
        "dY: T, shape: I, indices: Tind -> dX: T",
        I=INT64,
        T=FLOATS,
        Tind=INTS,
        axis=0,
        infer=typed(of(0), given_by(1)),
    ),
    op(
        "GatherND",
        "data: T, indices: Tind -> output: T",
        domain=ONNX,
        T=ANY,
        Tind=INTS,
        batch_dims=0,
        infer=typed(of(0), gathered_nd),
    ),
    op(
        "GatherNDGrad",
        "shape: T1, indices: Tind, update: T -> output: T",
        T=FLOATS,
        Tind=INT64,
        T1=INT64,
        batch_dims=0,
        infer=typed(of(2), given_by(0)),
    ),
    op(
        "SliceGrad",
        "dY: T, shape: I, starts: Tind, ends: Tind, axes?: Tind, steps?: Tind -> dX: T",
        I=INT64,
        T=ANY,
        Tind=INTS,
        infer=typed(of(0), given_by(1)),
    ),
    op(
        "SplitTraining",
        "input: T, split: int64 -> outputs+: T",
        T=ANY,
        axis=0,
        infer=typed(of(0), part),
    ),
    op(
        "ConcatTraining",
        "inputs+: T -> concat_result: T, per_input_length?: Tint",
        T=ANY,
        Tint=INT64,
        axis=required("int"),
        infer=(
            typed(of(0), joined),
            typed(fixed(DataType.INT64), lambda facts, output: (facts.inputs,)),
        ),
    ),
    op(
        "View",
        "input: T, shapes+: int64 -> outputs+: T",
        T=FIXED,
        infer=typed(of(0), given_by_each(1)),
    ),
    op(
        "PadAndUnflatten",
        "input: T, indices: T_INDEX, unflatten_dims: T_INT -> output: T",
        T=FLOATS,
        T_INDEX=INTS,
        T_INT=INTS,
        infer=typed(of(0), unflattened),
    ),
    op(
        "FlattenAndUnpad",
        "input: T, indices: T_INT -> output: T, unflatten_dims: T_INT",
        T=FLOATS | INTS,
        T_INT=INTS,
        infer=(typed(of(0), unpadded), typed(of(1), fixed_shape(2))),
    ),
    op(
        "ResizeGrad",
        "dY: T, X: T, roi?: T, scales?: float -> dX: T",
        T=FLOATS,
        mode="nearest",
        coordinate_transformation_mode="half_pixel",
        antialias=0,
        axes=optional("ints"),
        cubic_coeff_a=-0.75,
        exclude_outside=0,
        extrapolation_value=0.0,
        keep_aspect_ratio_policy="stretch",
        nearest_mode="round_prefer_floor",
        infer=same_as(1),
    ),
    op(
        "BroadcastGradientArgs",
        "a_shape: T, b_shape: T -> a_axes?: T, b_axes?: T",
        T=INT64,
        infer=typed(of(0), fixed_shape(None)),
    ),
)
