"""Forward operators outside ONNX that training graphs carry or gradient graphs emit."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import ANY, UINT8, UINT32, op, optional, required
from onnxtrain.graph.schemas.facts import Dim, Facts, Rule, Shape
from onnxtrain.graph.schemas.infer import (
    fixed,
    flag,
    from_attribute,
    normalize,
    of,
    packed,
    same_as,
    shape_of,
    typed,
)
from onnxtrain.graph.schemas.nn import LAYER_NORM, STATISTICS
from onnxtrain.types import BOOL, FIXED, FLOATS, INTS, ONNX, DataType


def product(facts: Facts, output: int) -> Shape | None:
    """Shape of A @ B after the transposes that the attributes ask for."""
    a, b = facts.shape(0), facts.shape(1)
    if not a or not b:
        return None
    a = transposed(a, facts.integer("transA"), facts.integer("transBatchA"))
    b = transposed(b, facts.integer("transB"), facts.integer("transBatchB"))
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    return broadcast(a[:-2], b[:-2]) + rows + columns


def transposed(shape: Shape, last: int | None, batch: int | None) -> Shape:
    """Moves the first dimension behind the batch ones, then swaps the last two; vectors stay."""
    if len(shape) < 2:
        return shape
    if batch:
        shape = shape[1:-1] + shape[:1] + shape[-1:]
    return shape[:-2] + (shape[-1], shape[-2]) if last else shape


def broadcast(a: Shape, b: Shape) -> Shape:
    """Shape of two batches aligned at their ends."""
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    return tuple(_broadcast_dim(x, y) for x, y in zip(a, b, strict=True))


def _broadcast_dim(x: Dim, y: Dim) -> Dim:
    """The common size; a number other than 1 wins over a symbol, two symbols may still be 1."""
    if x == 1 or x == y:
        return y
    if y == 1 or isinstance(x, int):
        return x
    return y if isinstance(y, int) else None


def dequantized_product(facts: Facts, output: int) -> Shape | None:
    """A.shape[:-1] + [N], or + [K] when B is used untransposed."""
    a = facts.shape(0)
    return None if not a else a[:-1] + (facts.integer("N" if facts.integer("transB") else "K"),)


def gathered(facts: Facts, output: int) -> Shape | None:
    """data.shape with the axis replaced by the shape of the indices."""
    data, indices = facts.shape(0), facts.shape(1)
    axis = None if data is None else normalize(facts.integer("axis"), len(data))
    if data is None or indices is None or axis is None:
        return None
    return data[:axis] + indices + data[axis + 1 :]


def normalized(facts: Facts, output: int) -> Shape | None:
    """Statistics of a layer norm: X.shape with 1 from the axis on (the last one by default)."""
    shape, axis = facts.shape(0), facts.integer("axis")
    first = None if shape is None else normalize(-1 if axis is None else axis, len(shape))
    if shape is None or first is None:
        return None
    return shape[:first] + (1,) * (len(shape) - first)


def statistics(stash: DataType | None = None) -> Rule:
    """Mean or inverse deviation, in the type of ``stash_type`` or a fixed one."""
    return typed(from_attribute("stash_type") if stash is None else fixed(stash), normalized)


OPS = (
    op(
        "FusedMatMul",
        "A: T, B: T -> Y: T",
        T=FLOATS,
        alpha=1.0,
        transA=0,
        transB=0,
        transBatchA=0,
        transBatchB=0,
        infer=typed(of(0), product),
    ),
    op(
        "MatMulBnb4",
        "A: T1, B: T2, absmax: T1 -> Y: T1",
        T1=FLOATS,
        T2=UINT8,
        K=required("int"),
        N=required("int"),
        block_size=required("int"),
        quant_type=required("int"),
        training_mode=0,
        transB=1,
        infer=typed(of(0), dequantized_product),
    ),
    op("Gelu", "X: T -> Y: T", T=FLOATS, infer=same_as(0)),
    op("FastGelu", "X: T, bias?: T -> Y: T", T=FLOATS, infer=same_as(0)),
    op("BiasGelu", "A: T, B: T -> C: T", T=FLOATS, infer=same_as(0)),
    op("QuickGelu", "X: T -> Y: T", T=FLOATS, alpha=1.702, infer=same_as(0)),
    op("Trilu", "X: T, k?: int64 -> Y: T", T=FIXED, upper=1, infer=same_as(0)),
    op(
        "ShrunkenGather",
        "data: T, indices: Tind -> output: T",
        T=ANY,
        Tind=INTS,
        axis=0,
        infer=typed(of(0), gathered),
    ),
    op(
        "BiasSoftmax",
        "data: T, bias: T -> output: T",
        T=FLOATS,
        axis=1,
        is_inner_broadcast=required("int"),
        infer=same_as(0),
    ),
    op(
        "BitmaskDropout",
        "data: T, ratio?: T1, training_mode?: T2 -> output: T, mask?: T3",
        T=FLOATS,
        T1=FLOATS,
        T2=BOOL,
        T3=UINT32,
        seed=optional("int"),
        infer=(same_as(0), typed(fixed(DataType.UINT32), packed(0, per_word=32))),
    ),
    op(
        "BiasDropout",
        "data: T, bias: T, residual?: T, ratio?: T1, training_mode?: T2 -> output: T, mask?: T2",
        T=FLOATS,
        T1=FLOATS,
        T2=BOOL,
        seed=optional("int"),
        infer=(same_as(0), flag(shape_of(0))),
    ),
    op(
        "BitmaskBiasDropout",
        "data: T, bias: T, residual?: T, ratio?: T1, training_mode?: T2 -> output: T, mask?: T3",
        T=FLOATS,
        T1=FLOATS,
        T2=BOOL,
        T3=UINT32,
        seed=optional("int"),
        infer=(same_as(0), typed(fixed(DataType.UINT32), packed(0, per_word=32))),
    ),
    op(
        "LayerNormalization",
        "X: T, Scale: V, B?: V -> Y: V, Mean?: U, InvStdDev?: U",
        domain=ONNX,
        T=FLOATS,
        U=STATISTICS,
        V=FLOATS,
        attributes=LAYER_NORM,
        infer=(typed(of(1), shape_of(0)), statistics()),
    ),
    op(
        "SimplifiedLayerNormalization",
        "X: T, scale: V -> Y: V, inv_std_var?: U",
        domain=ONNX,
        T=FLOATS,
        U=STATISTICS,
        V=FLOATS,
        attributes=LAYER_NORM,
        infer=(typed(of(1), shape_of(0)), statistics()),
    ),
    op(
        "SkipLayerNormalization",
        "input: T, skip: T, gamma: T, beta?: T, bias?: T -> "
        "output: T, mean?: U, inv_std_var?: U, input_skip_bias_sum?: T",
        T=FLOATS,
        U=frozenset({DataType.FLOAT}),
        epsilon=1e-12,
        infer=(same_as(0), statistics(DataType.FLOAT), statistics(DataType.FLOAT), same_as(0)),
    ),
    op(
        "SkipSimplifiedLayerNormalization",
        "input: T, skip: T, gamma: T, bias?: T -> "
        "output: T, mean?: U, inv_std_var?: U, input_skip_bias_sum?: T",
        T=FLOATS,
        U=frozenset({DataType.FLOAT}),
        epsilon=1e-12,
        infer=(same_as(0), statistics(DataType.FLOAT), statistics(DataType.FLOAT), same_as(0)),
    ),
    op(
        "ATen",
        "inputs+: each T -> outputs+: each T",
        domain="org.pytorch.aten",
        T=ANY,
        operator=required("string"),
        overload_name="",
        cpu_input_args=optional("ints"),
        cpu_output_args=optional("ints"),
    ),
)
