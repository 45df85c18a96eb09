import ml_dtypes
import numpy as np
import pytest
import torch

from onnxtrain.errors import FeedError
from onnxtrain.runtime.feeds import Feeds
from onnxtrain.runtime.ort_value import OrtValue
from runtime.small import plan, session

HOST = torch.device("cpu")
TEXT = "(float[N,3] x, int64[2] k) => (float[N,3] y) { y = Neg(x)  s = Neg(k) }"


def feeds() -> Feeds:
    return Feeds(plan(TEXT).inputs, HOST)


def x(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def k() -> torch.Tensor:
    return torch.tensor([1, 2])


def test_arguments_come_in_the_order_of_the_plan() -> None:
    first, second = feeds()({"k": k(), "x": x(2, 3)})
    assert first.shape == (2, 3) and second.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": x(2, 3)}, "no value for input 'k'"),
        ({}, "no value for input 'k', 'x'"),
        ({"x": x(2, 3), "k": k(), "z": k()}, "the model has no input 'z'"),
        ({"x": x(2, 3).double(), "k": k()}, r"'x' must be tensor\(float\), got tensor\(double\)"),
        (
            {"x": np.full((2, 3), "1"), "k": k()},
            r"'x' must be tensor\(float\), got tensor\(string\)",
        ),
        (
            {"x": np.ones((2, 3), object), "k": k()},
            r"(?s)'x' must be tensor\(float\), got an array of Python objects.*astype\('float32'\)",
        ),
        ({"x": x(2, 3), "k": k().int()}, r"'k' must be tensor\(int64\), got tensor\(int32\)"),
        ({"x": x(3), "k": k()}, r"'x' must have shape \[N, 3\], got \[3\]"),
        ({"x": x(2, 3, 1), "k": k()}, r"'x' must have shape \[N, 3\], got \[2, 3, 1\]"),
        ({"x": x(2, 4), "k": k()}, r"'x' must have shape \[N, 3\], got \[2, 4\]"),
        ({"x": None, "k": k()}, "'x' is None, but the graph needs a value"),
        ({"x": "text", "k": k()}, "cannot take a str for input 'x'"),
        ({"x": x(2, 3), "k": [1, 0.5]}, r"list for input 'k' .*: 0.5 is no whole number"),
        ({"x": x(2, 3), "k": [1, 2**70]}, "cannot take a list for input 'k'"),
        ({"x": x(2, 3), "k": [1, float("inf")]}, "cannot take a list for input 'k'"),
        ({"x": np.ones((2, 3), np.float64), "k": k()}, r"got tensor\(double\)"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(given: dict[str, object], message: str) -> None:
    with pytest.raises(FeedError, match=message):
        feeds()(given)


def test_a_refusal_lists_the_inputs() -> None:
    with pytest.raises(FeedError) as caught:
        feeds()({})
    assert "inputs  'x' tensor(float)[N, 3], 'k' tensor(int64)[2]" in str(caught.value)


def test_torch_numpy_dlpack_and_ort_values_are_taken_without_a_copy() -> None:
    array = np.ones((2, 3), np.float32)
    tensor = x(2, 3)

    class Dlpack:
        def __dlpack__(self, **options: object) -> object:
            return tensor.__dlpack__()

        def __dlpack_device__(self) -> object:
            return tensor.__dlpack_device__()

    for value in (tensor, OrtValue(tensor), Dlpack()):
        assert feeds()({"x": value, "k": k()})[0].data_ptr() == tensor.data_ptr()
    assert feeds()({"x": array, "k": k()})[0].data_ptr() == array.ctypes.data


def test_numbers_and_lists_take_the_declared_type() -> None:
    first, second = feeds()({"x": [[1, 2, 3]], "k": [4, 5]})
    assert first.dtype == torch.float32 and second.dtype == torch.int64


def test_whole_numbers_may_be_written_as_floats() -> None:
    assert feeds()({"x": x(2, 3), "k": [4.0, np.float32(5)]})[1].tolist() == [4, 5]


def test_read_only_arrays_are_copied() -> None:
    array = np.ones((2, 3), np.float32)
    array.flags.writeable = False
    assert feeds()({"x": array, "k": k()})[0].data_ptr() != array.ctypes.data


def test_bfloat16_arrays_are_taken_by_their_bits() -> None:
    runs = session("(bfloat16[2] x) => (bfloat16[2] y) { y = Neg(x) }")
    array = np.array([1.5, -2], ml_dtypes.bfloat16)
    (result,) = runs.run(None, {"x": array})
    assert result.dtype == ml_dtypes.bfloat16 and result.tolist() == [-1.5, 2]


def test_arrays_that_torch_cannot_wrap_are_named() -> None:
    with pytest.raises(FeedError, match="input 'x'"):
        feeds()({"x": np.ones((2, 3), np.longdouble), "k": k()})


def test_sequences_are_lists_of_tensors() -> None:
    taken = Feeds(plan("(seq(float[N]) x) => (seq(float[N]) y) { y = Identity(x) }").inputs, HOST)
    (items,) = taken({"x": [torch.ones(2), np.zeros(3, np.float32)]})
    assert [len(item) for item in items] == [2, 3]
    with pytest.raises(FeedError, match="input 'x' is a sequence: give a list of tensors"):
        taken({"x": torch.ones(2)})
    with pytest.raises(FeedError, match=r"input 'x' must be"):
        taken({"x": [torch.ones(2, dtype=torch.float64)]})


def test_items_of_sequences_may_have_any_shape_but_must_have_the_type() -> None:
    taken = Feeds(plan("(seq(float[]) x) => (seq(float[]) y) { y = Identity(x) }").inputs, HOST)
    (items,) = taken({"x": [1.5, [2.0, 3.0]]})
    assert [item.dtype for item in items] == [torch.float32] * 2


def test_an_optional_may_be_none() -> None:
    text = "(optional(float[2]) x) => (optional(float[2]) y) { y = Identity(x) }"
    taken = Feeds(plan(text).inputs, HOST)
    assert taken({"x": None}) == [None]
    assert taken({"x": torch.ones(2)})[0].tolist() == [1, 1]
    with pytest.raises(FeedError, match="input 'x' must be"):
        taken({"x": torch.ones(2, dtype=torch.int64)})
