"""Scaling, finiteness, reductions and fake quantization."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import op, optional, required
from onnxtrain.graph.schemas.facts import UNKNOWN, Dim, Facts, Shape
from onnxtrain.graph.schemas.infer import (
    SCALAR,
    SCALAR_FLAG,
    any_shape,
    fixed_shape,
    flag,
    from_attribute,
    normalize,
    numel,
    of,
    same_as,
    shape_of,
    typed,
)
from onnxtrain.types import BOOL, FLOATS, INTS, OWN, DataType

SUMMABLE = FLOATS | INTS | {DataType.UINT32, DataType.UINT64}
SCALES = {
    "scale_0": required("float"),
    "scale_1": required("float"),
    "scale_2": optional("float"),
}


def reduced(facts: Facts, output: int) -> Shape | None:
    """data.shape with the axes of input 1 dropped, or set to 1 if keepdims is 1."""
    shape, axes = facts.shape(0), facts.numbers(1)
    keep = facts.integer("keepdims") == 1
    if shape is None:
        return None
    if axes is None:
        return (None,) * len(shape) if keep else None
    if not axes and facts.integer("noop_with_empty_axes") == 1:
        return shape
    gone = {normalize(_number(axis), len(shape)) for axis in axes} or set(range(len(shape)))
    if None in gone:
        return None
    if keep:
        return tuple(1 if axis in gone else dim for axis, dim in enumerate(shape))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in gone)


def scaled(facts: Facts, output: int) -> Shape | None:
    """The shape of the matching input, or one row of all elements if outputs are fused."""
    if not facts.integer("fuse_outputs"):
        return facts.shape(output + 1)
    sizes = [numel(facts.shape(index)) for index in range(1, facts.inputs)]
    known = [size for size in sizes if size is not None]
    return (sum(known) if len(known) == len(sizes) else None,)


def _number(dim: Dim) -> int | None:
    return dim if isinstance(dim, int) else None


OPS = (
    op(
        "Elementwise",
        "inputs+: T -> Y: T",
        domain=OWN,
        T=FLOATS,
        steps=required("string"),
        infer=typed(of(0), any_shape),
    ),
    op("DivGrad", "dY: T, A: T, B: T -> dA?: T, dB?: T", T=FLOATS, infer=(same_as(1), same_as(2))),
    op(
        "Scale",
        "input: T, scale: ScaleT -> output: T",
        T=FLOATS,
        ScaleT=FLOATS | INTS,
        scale_down=0,
        infer=same_as(0),
    ),
    op(
        "BatchScale",
        "input: T -> output_0: T, output_1: T, output_2?: T",
        T=FLOATS,
        attributes=SCALES,
        infer=same_as(0),
    ),
    op(
        "ScaledSum",
        "input_0: T, input_1: T, input_2?: T -> output: T",
        T=FLOATS,
        attributes=SCALES,
        infer=same_as(0),
    ),
    op(
        "MixedPrecisionScale",
        "S: ScaleT, X+: SrcT -> Y+: DstT",
        SrcT=FLOATS,
        ScaleT=FLOATS,
        DstT=FLOATS,
        to=required("int"),
        fuse_outputs=0,
        infer=typed(from_attribute("to"), scaled),
    ),
    op("IsFinite", "X: T -> Y: T1", T=FLOATS, T1=BOOL, infer=flag(shape_of(0))),
    op(
        "IsAllFinite",
        "input+: V -> output: T",
        V=FLOATS,
        T=BOOL,
        isinf_only=0,
        isnan_only=0,
        infer=SCALAR_FLAG,
    ),
    op("All", "X: T -> Y: T", T=BOOL, infer=flag(fixed_shape(1))),
    op(
        "ReduceSumTraining",
        "data: T, axes: int64 -> reduced: T",
        T=SUMMABLE,
        keepdims=1,
        noop_with_empty_axes=0,
        infer=typed(of(0), reduced),
    ),
    op(
        "ReduceAllL2",
        "X+: TIn -> Y: TOut",
        TIn=FLOATS,
        TOut=FLOATS,
        # no input has the type of the norm: the graph declares it
        infer=typed(lambda facts, output: UNKNOWN, SCALAR),
    ),
    op(
        "FakeQuant",
        "input: T, scale: T, zero_point: T -> output: T, mask: T_BOOL",
        T=FLOATS,
        T_BOOL=BOOL,
        quant_min=0,
        quant_max=255,
        infer=(same_as(0), flag(shape_of(0))),
    ),
    op(
        "FakeQuantGrad",
        "dY: T, gradient_mask: T_BOOL -> dX: T",
        T=FLOATS,
        T_BOOL=BOOL,
        infer=same_as(0),
    ),
)
