"""Operators on whole numbers that stand for real ones, outside ONNX."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import UINT8, Attributes, op, optional, required
from onnxtrain.graph.schemas.facts import UNKNOWN, Facts, Shape
from onnxtrain.graph.schemas.forward import broadcast, product
from onnxtrain.graph.schemas.infer import (
    fixed,
    normalize,
    of,
    same_as,
    shape_of,
    times,
    typed,
)
from onnxtrain.graph.schemas.ms_shapes import (
    convolved_bytes,
    gathered_at,
    pooled_either,
    pooled_whole,
    replaced,
)
from onnxtrain.graph.schemas.nn import CONV
from onnxtrain.types import BOOL, FLOAT8, FLOATS, INTS, NARROW, DataType

BYTES = frozenset({DataType.INT8, DataType.UINT8})
FLOAT = frozenset({DataType.FLOAT})
INT32 = frozenset({DataType.INT32})
SHORT = frozenset({DataType.INT16, DataType.UINT16})
_FOUR_BITS = frozenset({DataType.INT4, DataType.UINT4})
_WINDOW: Attributes = {
    "auto_pad": "NOTSET",
    "ceil_mode": 0,
    "channels_last": 0,
    "count_include_pad": 0,
    "kernel_shape": required("ints"),
    "pads": optional("ints"),
    "strides": optional("ints"),
}
_WEIGHTS: Attributes = {
    "K": required("int"),
    "N": required("int"),
    "accuracy_level": 0,
    "bits": 4,
    "block_size": required("int"),
    "weight_prepacked": 0,
}
_LSTM: Attributes = {
    "activation_alpha": optional("floats"),
    "activation_beta": optional("floats"),
    "activations": optional("strings"),
    "clip": optional("float"),
    "direction": "forward",
    "hidden_size": optional("int"),
    "input_forget": 0,
}


def rows_times_n(facts: Facts, output: int) -> Shape | None:
    """A.shape with the last size replaced by N."""
    a = facts.shape(0)
    return None if not a else a[:-1] + (facts.integer("N"),)


def joint(facts: Facts, *inputs: int) -> Shape | None:
    """The shape to which inputs are broadcast."""
    shapes = [facts.shape(index) for index in inputs]
    result: Shape = ()
    for shape in shapes:
        if shape is None:
            return None
        result = broadcast(result, shape)
    return result


def quantized_type(facts: Facts, output: int) -> int:
    """The type of the zero point, uint8 without one."""
    return facts.dtype(2) or int(DataType.UINT8)


def joined(facts: Facts, output: int) -> Shape | None:
    """Every third input from the third on, joined along the axis."""
    shapes = [facts.shape(index) for index in range(2, facts.inputs, 3)]
    known = [shape for shape in shapes if shape is not None]
    if not known or len(known) < len(shapes) or len({len(shape) for shape in known}) > 1:
        return None
    axis = normalize(facts.integer("axis"), len(known[0]))
    if axis is None:
        return None
    sizes = [shape[axis] for shape in known]
    numbers = [size for size in sizes if isinstance(size, int)]
    return replaced(known[0], axis, sum(numbers) if len(numbers) == len(sizes) else None)


def reduced(facts: Facts, output: int) -> Shape | None:
    """data.shape without the axes of the attribute (all if it is empty), or with 1 for them."""
    data = facts.shape(0)
    axes = [None if data is None else normalize(a, len(data)) for a in facts.integers("axes")]
    if data is None or None in axes:
        return None
    keep = facts.integer("keepdims")
    axes = axes or list(range(len(data)))
    kept = [1 if i in axes else size for i, size in enumerate(data) if keep or i not in axes]
    return tuple(kept)


def sum_type(facts: Facts, output: int) -> int:
    """32 bits, with a sign if data have one."""
    kinds = {int(DataType.INT8): DataType.INT32, int(DataType.UINT8): DataType.UINT32}
    return int(kinds.get(facts.dtype(0), UNKNOWN))


def gemm_shape(facts: Facts, output: int) -> Shape | None:
    """[rows of A', columns of B']."""
    a, b = facts.shape(0), facts.shape(3)
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return None
    return (a[1 if facts.integer("transA") else 0], b[0 if facts.integer("transB") else 1])


def gemm_type(facts: Facts, output: int) -> int:
    """float, or that of the zero point of the result."""
    found = facts.dtype(8)
    return int(DataType.FLOAT) if found == UNKNOWN else found


def unpacked(facts: Facts, output: int) -> Shape | None:
    """data.shape with the gathered axis replaced; uint8 holds several numbers."""
    shape = gathered_at("gather_axis")(facts, output)
    bits = facts.integer("bits") or 4
    if not shape or facts.dtype(0) != DataType.UINT8 or not 1 <= bits <= 8:
        return shape
    return shape[:-1] + (times(shape[-1], 8 // bits),)


def states(facts: Facts, output: int) -> Shape | None:
    """[sequence, directions, batch, hidden] of Y, without the sequence of Y_h and Y_c."""
    x, r = facts.shape(0), facts.shape(2)
    if x is None or r is None or len(x) != 3 or len(r) != 3:
        return None
    rest: Shape = (r[0], x[1], r[1])
    return (x[0], *rest) if output == 0 else rest


def _pair(name: str) -> str:
    return f"{name}: T, {name}_scale: float, {name}_zero_point?: T"


_X_TO_Y = "X: T, X_scale: float, X_zero_point?: T, Y_scale: float, Y_zero_point?: T -> Y: T"
_TWO = f"{_pair('A')}, {_pair('B')}, C_scale: float, C_zero_point?: T -> C: T"
_BOTH = typed(of(0), lambda facts, output: joint(facts, 0, 3))

WEIGHTS = (
    op(
        "MatMulNBits",
        "A: T1, B: T2, scales: T1, zero_points?: T3, g_idx?: T4, bias?: T1 -> Y: T1",
        T1=FLOATS,
        T2=UINT8,
        T3=FLOATS | UINT8,
        T4=INT32,
        attributes=_WEIGHTS,
        infer=typed(of(0), rows_times_n),
    ),
    op(
        "MatMulNBitsGrad",
        "dY: T1, A: T1, B: T2, scales: T1, zero_points?: T3, g_idx?: T4 -> "
        "dA?: T1, dscales?: T1, dzero_points?: T1, dbias?: T1",
        T1=FLOATS,
        T2=UINT8,
        T3=FLOATS | UINT8,
        T4=INT32,
        attributes=_WEIGHTS,
        infer=(
            same_as(1),
            same_as(3),
            typed(of(3), shape_of(4)),
            typed(of(0), lambda facts, output: (facts.integer("N"),)),
        ),
    ),
    op(
        "GatherBlockQuantized",
        "data: T1, indices: Tind, scales: T2, zero_points?: T1 -> output: T2",
        T1=_FOUR_BITS | UINT8 | FLOAT8 | (NARROW & {DataType.FLOAT4E2M1}),
        T2=FLOATS,
        Tind=INTS,
        bits=4,
        block_size=128,
        gather_axis=0,
        quantize_axis=1,
        infer=typed(of(2), unpacked),
    ),
)
LINEAR = (
    op(
        "QuantizeLinear",
        "x: T1, y_scale: T1, y_zero_point?: T2 -> y: T2",
        T1=FLOATS,
        T2=BYTES | SHORT | _FOUR_BITS,
        axis=optional("int"),
        infer=typed(quantized_type, shape_of(0)),
    ),
    op(
        "DequantizeLinear",
        "x: T1, x_scale: T2, x_zero_point?: T1 -> y: T2",
        T1=BYTES | SHORT | INT32 | _FOUR_BITS,
        T2=FLOATS,
        axis=optional("int"),
        infer=typed(of(1), shape_of(0)),
    ),
    op("QLinearAdd", _TWO, T=BYTES, infer=_BOTH),
    op("QLinearMul", _TWO, T=BYTES, infer=_BOTH),
    op("QLinearSigmoid", _X_TO_Y, T=BYTES, infer=same_as(0)),
    op("QLinearLeakyRelu", _X_TO_Y, T=BYTES, alpha=0.01, infer=same_as(0)),
    op("QLinearSoftmax", _X_TO_Y, T=BYTES, axis=-1, opset=required("int"), infer=same_as(0)),
    op(
        "QLinearGlobalAveragePool",
        _X_TO_Y,
        T=BYTES,
        channels_last=0,
        infer=typed(of(0), pooled_whole),
    ),
    op(
        "QLinearAveragePool",
        _X_TO_Y,
        T=BYTES,
        attributes=_WINDOW,
        infer=typed(of(0), pooled_either),
    ),
    op(
        "QLinearReduceMean",
        "data: T, data_scale: float, data_zero_point?: T, reduced_scale: float, "
        "reduced_zero_point?: T -> reduced: T",
        T=BYTES,
        axes=required("ints"),
        keepdims=required("int"),
        infer=typed(of(0), reduced),
    ),
    op(
        "QLinearConcat",
        "Y_scale: TF, Y_zero_point: T8, inputs+: each TV -> Y: T8",
        T8=BYTES,
        TF=FLOAT,
        TV=BYTES | FLOAT,
        axis=required("int"),
        infer=typed(of(1), joined),
    ),
    op(
        "QLinearWhere",
        "condition: B, X: T, x_scale: TF, x_zero_point: T, Y: T, y_scale: TF, y_zero_point: T, "
        "z_scale: TF, z_zero_point: T -> Z: T",
        B=BOOL,
        T=BYTES,
        TF=FLOAT,
        infer=typed(of(1), lambda facts, output: joint(facts, 0, 1, 4)),
    ),
)
PRODUCTS = (
    op(
        "QLinearConv",
        "x: T1, x_scale: float, x_zero_point: T1, w: T2, w_scale: float, w_zero_point: T2, "
        "y_scale: float, y_zero_point: T3, B?: T4 -> y: T3",
        T1=BYTES,
        T2=BYTES,
        T3=BYTES,
        T4=INT32,
        attributes=CONV,
        channels_last=0,
        infer=typed(of(7), convolved_bytes),
    ),
    op(
        "QGemm",
        "A: TA, a_scale: T, a_zero_point: TA, B: TB, b_scale: T, b_zero_point: TB, C?: TC, "
        "y_scale?: T, y_zero_point?: TYZ -> Y: TY",
        T=FLOAT,
        TA=BYTES,
        TB=BYTES,
        TC=INT32,
        TYZ=BYTES,
        TY=FLOAT | BYTES,
        alpha=1.0,
        transA=0,
        transB=0,
        infer=typed(gemm_type, gemm_shape),
    ),
    op(
        "DynamicQuantizeMatMul",
        "A: T1, B: T2, b_scale: T1, b_zero_point?: T2, bias?: T1 -> Y: T1",
        T1=FLOAT,
        T2=BYTES,
        infer=typed(of(0), product),
    ),
    op(
        "MatMulIntegerToFloat",
        "A: T1, B: T2, a_scale: T3, b_scale: T3, a_zero_point?: T1, b_zero_point?: T2, bias?: T3 "
        "-> Y: T3",
        T1=BYTES,
        T2=BYTES,
        T3=FLOATS,
        infer=typed(of(2), product),
    ),
    op(
        "MatMulInteger16",
        "A: T1, B: T2 -> Y: T3",
        T1=SHORT,
        T2=SHORT,
        T3=frozenset({DataType.INT32, DataType.UINT32}),
        infer=typed(fixed(DataType.INT32), product),
    ),
    op(
        "MulInteger",
        "A: T, A_zero_point?: T, B: T, B_zero_point?: T -> C: T1",
        T=BYTES,
        T1=INT32,
        infer=typed(fixed(DataType.INT32), lambda facts, output: joint(facts, 0, 2)),
    ),
    op(
        "ReduceSumInteger",
        "data: T1 -> reduced: T2",
        T1=BYTES,
        T2=frozenset({DataType.INT32, DataType.UINT32}),
        axes=required("ints"),
        keepdims=required("int"),
        infer=typed(sum_type, reduced),
    ),
    op(
        "DynamicQuantizeLSTM",
        "X: T, W: T2, R: T2, B?: T, sequence_lens?: T1, initial_h?: T, initial_c?: T, P?: T, "
        "W_scale: T, W_zero_point: T2, R_scale: T, R_zero_point: T2 -> Y?: T, Y_h?: T, Y_c?: T",
        T=FLOAT,
        T1=INT32,
        T2=BYTES,
        attributes=_LSTM,
        infer=typed(of(0), states),
    ),
)

OPS = (*WEIGHTS, *LINEAR, *PRODUCTS)
