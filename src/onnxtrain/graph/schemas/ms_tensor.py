"""Further forward operators outside ONNX: distances, transforms, look-ups, hashes, windows."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import ANY, INT64, WIDE, Attributes, op, optional, required
from onnxtrain.graph.schemas.facts import Facts, Shape
from onnxtrain.graph.schemas.forward import broadcast
from onnxtrain.graph.schemas.infer import (
    any_shape,
    at,
    fixed,
    fixed_shape,
    normalize,
    of,
    same_as,
    shape_of,
    typed,
)
from onnxtrain.graph.schemas.ms_shapes import pooled, replaced
from onnxtrain.graph.schemas.tensor import gathered_nd
from onnxtrain.types import FIXED, FLOATS, INTS, NUMBERS, TEXT, DataType

_INT32 = frozenset({DataType.INT32})
_TRANSFORM: Attributes = {"normalized": 0, "onesided": 1}


def pairs(facts: Facts, output: int) -> Shape:
    """[rows of A, rows of B]."""
    return (at(facts.shape(0), 0), at(facts.shape(1), 0))


def expanded(facts: Facts, output: int) -> Shape | None:
    """X.shape with a 1 at the axis, which counts in the new shape."""
    x, axis = facts.shape(0), facts.numbers(1)
    if x is None:
        return None
    place = normalize(axis[0], len(x) + 1) if axis and isinstance(axis[0], int) else None
    return (None,) * (len(x) + 1) if place is None else x[:place] + (1,) + x[place:]


def spectrum(facts: Facts, output: int) -> Shape | None:
    """The last size n becomes n//2 + 1, followed by 2 for the parts of a complex number."""
    x = facts.shape(0)
    n = at(x, -1)
    if not x:
        return None
    return x[:-1] + (n // 2 + 1 if isinstance(n, int) else None, 2)


def from_spectrum(facts: Facts, output: int) -> Shape | None:
    """The inverse: m complex numbers stand for 2(m - 1) real ones."""
    x = facts.shape(0)
    if x is None or len(x) < 2:
        return None
    m = x[-2]
    return x[:-2] + (2 * (m - 1) if isinstance(m, int) and m > 0 else None,)


def sampled(facts: Facts, output: int) -> Shape | None:
    """[N, C, sizes of the grid]."""
    x, grid = facts.shape(0), facts.shape(1)
    return None if x is None or grid is None else x[:2] + grid[1:-1]


def cropped(facts: Facts, output: int) -> Shape | None:
    """[regions, C, height, width]."""
    size = facts.numbers(3) or (None, None)
    x = facts.shape(0)
    return (at(facts.shape(1), 0), at(x, 1), *size) if len(size) == 2 else None


def embedded(facts: Facts, output: int) -> Shape | None:
    """indices.shape + the width of the table."""
    indices = facts.shape(1)
    return None if indices is None else (*indices, at(facts.shape(0), 1))


def unfolded(facts: Facts, output: int) -> Shape | None:
    """The axis becomes the number of windows; their size comes last."""
    x, size, step = facts.shape(0), facts.integer("size"), facts.integer("step")
    axis = None if x is None else normalize(facts.integer("dim"), len(x))
    if x is None or axis is None or size is None or not step or step < 1:
        return None
    whole = x[axis]
    count = (whole - size) // step + 1 if isinstance(whole, int) and whole >= size else None
    return (*replaced(x, axis, count), size)


def padded(facts: Facts, output: int) -> Shape | None:
    """data.shape with the pads added to each size."""
    data, pads = facts.shape(0), facts.numbers(1)
    if data is None or pads is None or len(pads) != 2 * len(data):
        return None if data is None else (None,) * len(data)
    rank = len(data)
    return tuple(
        size + before + behind
        if isinstance(size, int) and isinstance(before, int) and isinstance(behind, int)
        else None
        for size, before, behind in zip(data, pads[:rank], pads[rank:], strict=True)
    )


def transposed(facts: Facts, output: int) -> Shape | None:
    """[N, M, unknown sizes]; the pads that decide them are an input."""
    x = facts.shape(0)
    return None if x is None or len(x) < 3 else (x[0], *(None,) * (len(x) - 1))


def together(facts: Facts, output: int) -> Shape | None:
    """Both shapes broadcast."""
    a, b = facts.shape(0), facts.shape(1)
    return None if a is None or b is None else broadcast(a, b)


def hash_type(facts: Facts, output: int) -> int:
    """uint32, or int32 if hashes may be negative."""
    return int(DataType.UINT32 if facts.integer("positive") else DataType.INT32)


OPS = (
    op("CDist", "A: T, B: T -> C: T", T=FLOATS, metric="sqeuclidean", infer=typed(of(0), pairs)),
    op("ComplexMul", "A: T, B: T -> C: T", T=FLOATS, infer=typed(of(0), together)),
    op("ComplexMulConj", "A: T, B: T -> C: T", T=FLOATS, infer=typed(of(0), together)),
    op(
        "ConvTransposeWithDynamicPads",
        "X: T, W: T, Pads?: int64, B?: T -> Y: T",
        T=FLOATS,
        auto_pad="NOTSET",
        dilations=optional("ints"),
        group=1,
        kernel_shape=optional("ints"),
        output_padding=optional("ints"),
        strides=optional("ints"),
        infer=typed(of(0), transposed),
    ),
    op(
        "CropAndResize",
        "X: T1, rois: T1, batch_indices: T2, crop_size: T2 -> Y: T1",
        T1=FLOATS,
        T2=_INT32,
        extrapolation_value=0.0,
        mode="bilinear",
        infer=typed(of(0), cropped),
    ),
    op(
        "DynamicTimeWarping",
        "input: F -> output: I",
        F=FLOATS,
        I=_INT32,
        infer=typed(fixed(DataType.INT32), fixed_shape(2, None)),
    ),
    op("ExpandDims", "X: T, axis: int32 -> Y: T", T=ANY, infer=typed(of(0), expanded)),
    op("GatedAdd", "X: T, Y: T, gate: T -> output: T", T=FLOATS, infer=same_as(0)),
    op(
        "GatherND",
        "data: T, indices: Tind -> output: T",
        T=ANY,
        Tind=INTS,
        infer=typed(of(0), gathered_nd),
    ),
    op(
        "GridSample",
        "X: T1, Grid: T1 -> Y: T2",
        T1=FLOATS,
        T2=FLOATS,
        align_corners=0,
        mode="bilinear",
        padding_mode="zeros",
        infer=typed(of(0), sampled),
    ),
    op("Inverse", "X: T -> Y: T", T=FLOATS, infer=same_as(0)),
    op(
        "Irfft",
        "X: T -> Y: T",
        T=FLOATS,
        attributes=_TRANSFORM,
        signal_ndim=required("int"),
        infer=typed(of(0), from_spectrum),
    ),
    op(
        "MaxpoolWithMask",
        "X: T, M: int32 -> Y: T",
        T=FLOATS,
        auto_pad="NOTSET",
        kernel_shape=optional("ints"),
        pads=optional("ints"),
        storage_order=0,
        strides=optional("ints"),
        infer=typed(of(0), pooled),
    ),
    op(
        "MurmurHash3",
        "X: T1 -> Y: T2",
        T1=INTS | TEXT | WIDE | {DataType.UINT32, DataType.UINT64},
        T2=frozenset({DataType.INT32, DataType.UINT32}),
        positive=1,
        seed=0,
        infer=typed(hash_type, shape_of(0)),
    ),
    op(
        "NGramRepeatBlock",
        "input_ids: Tid, scores: T -> scores_out: T",
        Tid=INT64,
        T=FLOATS,
        ngram_size=required("int"),
        infer=same_as(1),
    ),
    op(
        "Pad",
        "data: T, pads: int64, value?: T -> output: T",
        T=FLOATS,
        mode="constant",
        infer=typed(of(0), padded),
    ),
    op(
        "Range",
        "start: T, limit: T, delta?: T -> Y: T",
        T=frozenset({DataType.INT16, DataType.FLOAT, DataType.DOUBLE}) | INTS,
        infer=typed(of(0), fixed_shape(None)),
    ),
    op(
        "Rfft",
        "X: T -> Y: T",
        T=FLOATS,
        attributes=_TRANSFORM,
        signal_ndim=1,
        infer=typed(of(0), spectrum),
    ),
    op("SampleOp", "X: T -> Y: T", T=NUMBERS, infer=same_as(0)),
    op("ScaledSiLU", "X: T, scale?: M -> Y: T", T=FLOATS, M=FLOATS, alpha=1.0, infer=same_as(0)),
    op(
        "TorchEmbedding",
        "weight: T, indices: int64, padding_idx?: int64, scale_grad_by_freq?: bool -> Y: T",
        T=NUMBERS,
        infer=typed(of(0), embedded),
    ),
    op(
        "UnfoldTensor",
        "input: T -> output: T",
        T=FIXED,
        dim=-1,
        size=required("int"),
        step=1,
        infer=typed(of(0), unfolded),
    ),
    op(
        "Unique",
        "x: T -> y: T, idx: int64, counts: int64",
        T=FIXED,
        infer=(
            typed(of(0), fixed_shape(None)),
            typed(fixed(DataType.INT64), shape_of(0)),
            typed(fixed(DataType.INT64), any_shape),
        ),
    ),
)
