"""Results at the edges of what the standard defines: empty tensors, extreme and special numbers.

Numbers without a comment are the standard's text applied by hand, or numpy's own.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from onnxtrain.errors import NodeError
from onnxtrain.runtime.session import InferenceSession

Array = np.ndarray
SIGNED = [np.int8, np.int16, np.int32, np.int64]
UNSIGNED = [np.uint8, np.uint16, np.uint32, np.uint64]
NAN, INF = np.nan, np.inf


def run(op: str, *inputs: Any, outputs: int = 1, opset: int = 23, **attributes: Any) -> list[Any]:
    """Outputs of a model of one node."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    feeds = {name: x for name, x in zip(names, inputs, strict=True) if x is not None}
    results = [f"y{i}" for i in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, names, results, **attributes)],
        "one",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in feeds.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in results],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return InferenceSession(model).run(None, feeds)


def one(op: str, *inputs: Any, **attributes: Any) -> Array:
    return run(op, *inputs, **attributes)[0]


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


def i64(*values: int) -> Array:
    return np.array(values, np.int64)


def none(*shape: int, dtype: Any = np.float32) -> Array:
    """A tensor with a size of 0 somewhere."""
    return np.zeros(shape, dtype)


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def equal(found: Array, expected: Any) -> None:
    expected = np.asarray(expected, found.dtype)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("op", "identity"),
    [
        ("ReduceSum", 0.0),
        ("ReduceSumSquare", 0.0),
        ("ReduceL1", 0.0),
        ("ReduceL2", 0.0),
        ("ReduceProd", 1.0),
        ("ReduceMax", -INF),
        ("ReduceMin", INF),
        ("ReduceLogSum", -INF),
        ("ReduceLogSumExp", -INF),
    ],
)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_nothing_reduces_to_the_identity(op: str, identity: float, keepdims: int) -> None:
    found = one(op, none(2, 0, 3), i64(1), keepdims=keepdims)
    equal(found, np.full((2, 1, 3) if keepdims else (2, 3), identity))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_nothing_reduces_to_the_ends_of_whole_numbers(dtype: Any) -> None:
    info = np.iinfo(dtype)
    equal(one("ReduceMax", none(2, 0, dtype=dtype), i64(1), keepdims=0), [info.min] * 2)
    equal(one("ReduceMin", none(2, 0, dtype=dtype), i64(1), keepdims=0), [info.max] * 2)


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMean"])
def test_a_batch_of_none_stays_one(op: str) -> None:
    assert one(op, none(0, 3), i64(1), keepdims=0).shape == (0,)


EMPTY: dict[str, tuple[Callable[[], Array], Any]] = {
    "MatMul-inner": (lambda: one("MatMul", none(2, 0), none(0, 3)), np.zeros((2, 3))),
    "MatMul-rows": (lambda: one("MatMul", none(0, 2), ones(2, 3)), none(0, 3)),
    "Gemm-inner": (
        lambda: one("Gemm", none(2, 0), none(0, 3), f32(1, 2, 3)), [[1, 2, 3], [1, 2, 3]],
    ),
    "Einsum": (lambda: one("Einsum", none(2, 0), none(0, 3), equation="ij,jk->ik"),
               np.zeros((2, 3))),
    "Concat": (lambda: one("Concat", none(0, 3), ones(2, 3), axis=0), np.ones((2, 3))),
    "Concat-columns": (lambda: one("Concat", none(0, 3), none(0, 2), axis=-1), none(0, 5)),
    "Conv": (lambda: one("Conv", none(0, 2, 5, 5), ones(3, 2, 3, 3)), none(0, 3, 3, 3)),
    "ConvTranspose": (lambda: one("ConvTranspose", none(0, 2, 3, 3), ones(2, 3, 3, 3)),
                      none(0, 3, 5, 5)),
    "MaxPool": (lambda: one("MaxPool", none(0, 2, 5, 5), kernel_shape=[2, 2]), none(0, 2, 4, 4)),
    "AveragePool": (lambda: one("AveragePool", none(0, 2, 5, 5), kernel_shape=[2, 2]),
                    none(0, 2, 4, 4)),
    "GlobalAveragePool": (lambda: one("GlobalAveragePool", none(0, 2, 5)), none(0, 2, 1)),
    **{
        f"{op}-{name}": (lambda op=op, shape=shape: one(op, none(*shape)), none(*shape))
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for name, shape in (("rows", (0, 3)), ("columns", (3, 0)))
    },
    "Gather-none": (lambda: one("Gather", ones(2, 3), none(0, 2, dtype=np.int64)), none(0, 2, 3)),
    "Gather-from-none": (lambda: one("Gather", none(0, 3), none(0, dtype=np.int64)), none(0, 3)),
    "Pad": (lambda: one("Pad", none(0, 2), i64(1, 0, 1, 0)), np.zeros((2, 2))),
    "Resize": (lambda: one("Resize", none(0, 1, 2, 2), None, f32(1, 1, 2, 2)), none(0, 1, 4, 4)),
    "NonZero": (lambda: one("NonZero", none(0, 2)), none(2, 0)),
    "NonZero-scalar": (lambda: one("NonZero", np.float32(3).reshape(())), none(0, 1)),
    "CumSum": (lambda: one("CumSum", none(0, 2), np.array(0)), none(0, 2)),
    "Tile": (lambda: one("Tile", f32(1, 2), i64(0)), none(0)),
    "Expand": (lambda: one("Expand", none(1, 0), i64(3, 0)), none(3, 0)),
    "Reshape": (lambda: one("Reshape", none(0, 2), i64(2, 0), allowzero=1), none(2, 0)),
    "Slice": (lambda: one("Slice", f32(1, 2, 3), i64(2), i64(1)), none(0)),
    "Slice-behind": (lambda: one("Slice", f32(1, 2, 3), i64(5), i64(9)), none(0)),
    "OneHot": (lambda: one("OneHot", none(0, dtype=np.int64), np.array(3), f32(0, 1)), none(0, 3)),
    "LayerNormalization": (lambda: one("LayerNormalization", none(0, 4), ones(4)), none(0, 4)),
    "ScatterElements": (
        lambda: one("ScatterElements", f32(1, 2), none(0, dtype=np.int64), none(0)), [1, 2],
    ),
    "ScatterND": (lambda: one("ScatterND", f32(1, 2), none(0, 1, dtype=np.int64), none(0)), [1, 2]),
    "Range": (lambda: one("Range", np.array(3), np.array(1), np.array(1)), none(0)),
    "Where": (lambda: one("Where", none(0, 1, dtype=bool), none(0, 3), ones(1, 3)), none(0, 3)),
    "Compress": (lambda: one("Compress", f32(1, 2), none(0, dtype=bool), axis=0), none(0)),
    "NonMaxSuppression": (lambda: one("NonMaxSuppression", none(1, 0, 4), none(1, 1, 0)),
                          none(0, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", EMPTY)
def test_empty_tensors(name: str) -> None:
    found, expected = EMPTY[name]
    equal(found(), expected)


def test_parts_may_be_empty() -> None:
    left, right = run("Split", ones(4, 2), i64(0, 4), outputs=2, axis=0)
    assert (left.shape, right.shape) == ((0, 2), (4, 2))


@pytest.mark.parametrize(("x", "k"), [(none(0, 4), 2), (ones(3, 4), 0)], ids=["rows", "k"])
def test_the_largest_of_none(x: Array, k: int) -> None:
    values, indices = run("TopK", x, i64(k), outputs=2)
    assert values.shape == indices.shape == (len(x), k)


def test_a_sequence_of_no_steps_keeps_its_state() -> None:
    y, h, c = run("LSTM", none(0, 2, 3), ones(1, 8, 3), ones(1, 8, 2), outputs=3, hidden_size=2)
    assert y.shape == (0, 1, 2, 2)
    equal(h, np.zeros((1, 2, 2)))
    equal(c, np.zeros((1, 2, 2)))


def test_indices_count_from_the_end() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    equal(one("Gather", x, i64(-1, -3), axis=-1), x[:, [-1, -3]])
    equal(one("GatherElements", x, np.array([[-1], [-3]]), axis=-1), [[2], [3]])
    equal(one("GatherND", x, np.array([[-1, -1]])), [5])
    equal(one("Slice", x, i64(-1), i64(-9), i64(-1), i64(-2)), x[:, ::-2])
    equal(one("OneHot", i64(-1, 3, -4), np.array(3), f32(0, 1)), [[0, 0, 1], [0] * 3, [0] * 3])
    equal(one("ScatterElements", f32(1, 2, 3), i64(-1), f32(9)), [1, 2, 9])
    equal(one("ReduceSum", x, i64(-2), keepdims=0), x.sum(0))
    equal(one("Softmax", x, axis=-2).sum(0).round(5), [1, 1, 1])
    equal(one("Squeeze", x[None], i64(-3)), x)


DIVIDENDS, DIVISORS = [7, -7, 7, -7, 0, 100], [3, 3, -3, -3, 5, 7]


@pytest.mark.parametrize("dtype", SIGNED)
def test_signed_division(dtype: Any) -> None:
    a, b = np.array(DIVIDENDS, dtype), np.array(DIVISORS, dtype)
    equal(one("Div", a, b), [2, -2, -2, 2, 0, 14])
    equal(one("Mod", a, b), [1, 2, -2, -1, 0, 2])
    equal(one("Mod", a, b, fmod=1), [1, -1, 1, -1, 0, 2])


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_unsigned_division(dtype: Any) -> None:
    largest = np.iinfo(dtype).max
    a, b = np.array([7, largest, largest, 0], dtype), np.array([3, 2, largest, 5], dtype)
    equal(one("Div", a, b), [2, largest // 2, 1, 0])
    for fmod in (0, 1):
        equal(one("Mod", a, b, fmod=fmod), [1, 1, 0, 0])


@pytest.mark.parametrize("dtype", SIGNED)
def test_the_smallest_number_divided_by_minus_one(dtype: Any) -> None:
    smallest = np.full(40, np.iinfo(dtype).min, dtype)
    minus_one = np.full(40, -1, dtype)
    equal(one("Div", smallest, minus_one), smallest)
    for fmod in (0, 1):
        equal(one("Mod", smallest, minus_one, fmod=fmod), np.zeros(40))


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_division_by_zero_is_an_error(op: str, dtype: Any) -> None:
    with pytest.raises(NodeError, match="ZeroDivisionError"):
        one(op, np.array([1, 2], dtype), np.array([0, 1], dtype))


@pytest.mark.parametrize("op", ["PRelu", "LayerNormalization", "RMSNormalization"])
def test_a_scale_does_not_make_results_larger(op: str) -> None:
    x = f32(-1, 2, -3, 4, -5, 6).reshape(2, 3, 1)
    with pytest.raises(NodeError, match=r"must broadcast to the shape of X, \(2, 3, 1\)"):
        one(op, x, np.ones((3, 2), np.float32), **({} if op == "PRelu" else {"axis": 1}))


def test_axes_that_a_tensor_does_not_have_are_told() -> None:
    with pytest.raises(NodeError, match=r"axes are \[0, 5\], must be from -3 to 2"):
        one("MeanVarianceNormalization", np.ones((2, 3, 1), np.float32), axes=[0, 5])


def test_the_rest_of_floating_point_numbers() -> None:
    a, b = f32(7.5, -7.5, 7.5, -7.5, 5, INF, NAN, 1), f32(3, 3, -3, -3, INF, 2, 2, 0)
    with np.errstate(all="ignore"):
        equal(one("Mod", a, b, fmod=1), np.fmod(a, b))
    equal(one("Div", f32(1, -1, 0), f32(0, 0, 0)), [INF, -INF, NAN])


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_whole_numbers_wrap_around(dtype: Any) -> None:
    ends = np.array([np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    with np.errstate(over="ignore"):
        equal(one("Add", ends, ends), ends + ends)
        equal(one("Mul", ends, ends), ends * ends)
        equal(one("Sub", ends, np.array([-1 % 256, 1]).astype(dtype)),
              ends - np.array([-1 % 256, 1]).astype(dtype))  # fmt: skip
    if dtype in SIGNED:
        equal(one("Neg", ends), [-np.iinfo(dtype).max, np.iinfo(dtype).min])
        equal(one("Abs", ends), ends)


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_shifts(dtype: Any) -> None:
    width = np.iinfo(dtype).bits
    x, by = np.array([1, 129, 255, 3], dtype), np.array([width - 1, 1, 7, width], dtype)
    left = [1 << (width - 1), 258 % 2**width, (255 << 7) % 2**width, 0]
    equal(one("BitShift", x, by, direction="LEFT"), np.array(left, dtype))
    equal(one("BitShift", x, by, direction="RIGHT"), [0, 64, 1, 0])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_powers_of_whole_numbers(dtype: Any) -> None:
    x = np.array([2, -3, 0, 1, -1, -1], dtype)
    equal(one("Pow", x, np.array([5, 3, 0, -2, -3, -2], dtype)), [32, -27, 1, 1, -1, 1])
    equal(one("Pow", np.array([2, 9], dtype), f32(-1, 0.5)), [0, 3])


def test_powers_of_special_numbers() -> None:
    x, y = f32(-8, 0, 0, NAN, 1, -1, 2), f32(1 / 3, 0, -1, 0, NAN, INF, -INF)
    with np.errstate(all="ignore"):
        equal(one("Pow", x, y), np.power(x, y))


def test_nan_goes_through() -> None:
    x = f32(NAN, INF, -INF, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5)
    equal(one("Relu", x), [NAN, INF, 0, 0, 0.5, 1.5, 2.5, 0, 0])
    equal(one("Sign", x), [NAN, 1, -1, 0, 1, 1, 1, -1, -1])
    equal(one("Round", x), [NAN, INF, -INF, -0.0, 0, 2, 2, -0.0, -2])
    equal(one("Clip", x, np.float32(-1).reshape(()), np.float32(1).reshape(())),
          [NAN, 1, -1, 0, 0.5, 1, 1, -0.5, -1])  # fmt: skip
    equal(one("ThresholdedRelu", x), [0, INF, 0, 0, 0, 1.5, 2.5, 0, 0])


def test_halves_round_to_the_even_neighbour() -> None:
    x = f32(0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997)
    found = one("Round", x)
    equal(found, [0, 2, 2, 0, -2, -2, 0])
    assert np.signbit(found[3])


def test_maxima_and_minima_of_nan() -> None:
    a, b = f32(NAN, 1, NAN, INF, -INF), f32(1, NAN, NAN, 1, 1)
    equal(one("Max", a, b), np.maximum(a, b))
    equal(one("Min", a, b), np.minimum(a, b))
    for op, reduce in (("ReduceMax", np.max), ("ReduceMin", np.min)):
        for x in (f32(1, NAN, 3), f32(1, INF, -INF), f32(-INF, -INF)):
            equal(one(op, x, keepdims=0), reduce(x))


def test_places_of_extreme_numbers() -> None:
    x = f32(1, NAN, 3, NAN)
    assert one("ArgMax", x, keepdims=0) == np.argmax(x) == 1
    assert one("ArgMin", x, keepdims=0) == np.argmin(x) == 1
    ties = f32(2, 1, 2, 1)
    assert [int(one(op, ties, keepdims=0)) for op in ("ArgMax", "ArgMin")] == [0, 1]
    last = [one(op, ties, keepdims=0, select_last_index=1) for op in ("ArgMax", "ArgMin")]
    assert [int(n) for n in last] == [2, 3]
    values, indices = run("TopK", f32(1, 3, INF, 3, -INF), i64(4), outputs=2)
    equal(values, [INF, 3, 3, 1])
    equal(indices, [2, 1, 3, 0])


def test_bounds_in_the_wrong_order_give_the_upper_one() -> None:
    low, high = np.float32(8).reshape(()), np.float32(2).reshape(())
    equal(one("Clip", f32(0, 5, 10), low, high), [2, 2, 2])


def test_shares_of_infinity() -> None:
    equal(one("Softmax", f32(-INF, 1)), [0, 1])
    equal(one("Softmax", f32(-INF, -INF)), [NAN, NAN])
    equal(one("LogSoftmax", f32(-INF, 1)), [-INF, 0])
    equal(one("ReduceLogSumExp", f32(INF, 1), keepdims=0), INF)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_whole_numbers_are_cut_to_their_bits(dtype: Any) -> None:
    x = i64(0, 255, 256, -1, 2**31, 2**32 + 5, -(2**40) - 7)
    equal(one("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype))), x.astype(dtype))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_fractions_are_cut_off(dtype: Any) -> None:
    x = f32(3.9, 0.5, 0.0, 100.999) if np.iinfo(dtype).min == 0 else f32(3.9, -3.9, -0.5, 100.999)
    equal(one("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype))), np.trunc(x))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64])
def test_what_does_not_fit_is_still_a_number(dtype: Any) -> None:
    x = f32(NAN, INF, -INF, 1e30, -1e30)
    found = one("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    assert (found.dtype, found.shape) == (dtype, (5,))


def test_everything_but_zero_is_true() -> None:
    found = one("Cast", f32(NAN, INF, 0.0, -0.0, 1e-45), to=onnx.TensorProto.BOOL)
    equal(found, [True, True, False, False, True])


LARGE = f32(NAN, INF, -INF, 1e10, -1e10)
FLOAT8: dict[str, tuple[float, list[float]]] = {
    "float8_e4m3fn": (448, [NAN, NAN, NAN, NAN, NAN]),
    "float8_e4m3fnuz": (240, [NAN, NAN, NAN, NAN, NAN]),
    "float8_e5m2": (57344, [NAN, INF, -INF, INF, -INF]),
    "float8_e5m2fnuz": (57344, [NAN, NAN, NAN, NAN, NAN]),
}
"""The largest number of each type, and what larger ones become without saturation."""


@pytest.mark.parametrize("name", FLOAT8)
def test_numbers_of_8_bits_saturate(name: str) -> None:
    largest, beyond = FLOAT8[name]
    to = onnx.TensorProto.DataType.Value(name.upper().replace("_", ""))
    equal(one("Cast", LARGE, to=to).astype(np.float32), [NAN, largest, -largest, largest, -largest])
    equal(one("Cast", LARGE, to=to, saturate=0).astype(np.float32), beyond)


def test_numbers_of_4_bits() -> None:
    x = np.array([0, 7, 8, 15, 16, -1, -8, -9], np.int32)
    equal(one("Cast", x, to=onnx.TensorProto.INT4), np.array([0, 7, -8, -1, 0, -1, -8, 7]))
    equal(one("Cast", x, to=onnx.TensorProto.UINT4), np.array([0, 7, 8, 15, 0, 15, 8, 7]))
    found = one("Cast", f32(0.25, 0.75, 5.1, 7, -INF, NAN), to=onnx.TensorProto.FLOAT4E2M1)
    assert found.dtype == ml_dtypes.float4_e2m1fn
    equal(found.astype(np.float32)[:5], [0, 1, 6, 6, -6])


def test_quantized_numbers_saturate() -> None:
    x, scale = f32(-1e6, -129, 0.5, 1.5, 126.5, 1e6), np.float32(1).reshape(())
    equal(one("QuantizeLinear", x, scale, np.array(0, np.int8)), [-128, -128, 0, 2, 126, 127])
    equal(one("QuantizeLinear", x, scale, np.array(1, np.uint8)), [0, 0, 1, 3, 127, 255])
    found = one("QuantizeLinear", x, scale, output_dtype=onnx.TensorProto.INT4)
    equal(found, [-8, -8, 0, 2, 7, 7])
