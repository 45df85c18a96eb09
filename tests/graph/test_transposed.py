"""Sizes of transposed convolutions that are padded by a word: as they are in onnxruntime."""

import itertools

import numpy as np
import onnxruntime
import pytest

from graph.text import model, proto
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.session import InferenceSession

WINDOWS = [
    (kernel, stride, dilation, extra)
    for kernel, stride, dilation in itertools.product((1, 2, 3), (1, 2, 4), (1, 2))
    for extra in range(stride)
]


@pytest.mark.parametrize("opset", [1, 11, 22])
@pytest.mark.parametrize("word", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_sizes_and_values_are_those_of_onnxruntime(
    window: tuple[int, int, int, int], word: str, opset: int
) -> None:
    kernel, stride, dilation, extra = window
    more = f", output_padding=[{extra}]" if extra else ""
    text = f"""(float[1,1,4] x, float[1,1,{kernel}] w) => (float[] y) {{
        y = ConvTranspose<auto_pad="{word}", strides=[{stride}], dilations=[{dilation}]{more}>(x, w)
    }}"""
    feeds = {
        "x": np.arange(1, 5, dtype=np.float32).reshape(1, 1, 4),
        "w": np.array([1, 10, 100][:kernel], np.float32).reshape(1, 1, kernel),
    }
    of = proto(text, opset)
    (theirs,) = onnxruntime.InferenceSession(of.SerializeToString()).run(None, feeds)
    (ours,) = InferenceSession(of).run(None, feeds)
    np.testing.assert_array_equal(ours, theirs)
    assert prepare(model(text, opset)).graph.outputs[0].shape == theirs.shape


def test_what_reads_such_an_output_is_counted_again() -> None:
    text = """(float[1,1,4] x, float[1,1,3] w) => (float[] z) {
        y = ConvTranspose<auto_pad="SAME_LOWER", strides=[2], output_padding=[1]>(x, w)
        z = Relu(y) }"""
    assert prepare(model(text)).graph.outputs[0].shape == (1, 1, 8)


def test_a_kernel_of_unknown_size_leaves_the_sizes_open() -> None:
    text = """(float[1,1,4] x, float[1,1,K] w) => (float[] y)
        { y = ConvTranspose<auto_pad="SAME_LOWER", strides=[2], output_padding=[1]>(x, w) }"""
    shape = prepare(model(text)).graph.outputs[0].shape
    assert shape is None or not isinstance(shape[2], int)


@pytest.mark.parametrize("opset", [1, 11, 22])
@pytest.mark.parametrize(
    ("x", "attributes", "sizes"),
    [
        ("1,2,5", "output_shape=[4]", [4]),
        ("1,2,5,3", "output_shape=[4,9], strides=[1,2], output_padding=[0,1]", [4, 9]),
        ("1,2,3,5", 'output_shape=[9,2], strides=[2,1], auto_pad="SAME_UPPER"', [9, 2]),
        ("1,2,5,5", "output_shape=[1,2,4,1], kernel_shape=[3,3], dilations=[2,1]", [4, 1]),
        ("1,2,5,n", "output_shape=[4,4]", [4, None]),
    ],
    ids=str,
)
def test_sizes_that_are_smaller_than_the_input(
    x: str, attributes: str, sizes: list[int | None], opset: int
) -> None:
    """ONNX's inference ends at the first one, as if there were no further axes."""
    kernel = ",".join(["3"] * len(sizes))
    text = f"""(float[{x}] x, float[2,1,{kernel}] w) => (float[] z) {{
        y = ConvTranspose<{attributes}>(x, w)
        z = Relu(y) }}"""
    shape = prepare(model(text, opset)).graph.outputs[0].shape
    assert shape is not None
    assert [n if isinstance(n, int) else None for n in shape] == [1, 1, *sizes]
    feeds = {
        "x": np.ones([5 if n == "n" else int(n) for n in x.split(",")], np.float32),
        "w": np.ones([2, 1, *[3] * len(sizes)], np.float32),
    }
    (found,) = InferenceSession(proto(text, opset)).run(None, feeds)
    assert [
        n if m is not None else None for n, m in zip(found.shape[2:], sizes, strict=True)
    ] == sizes


GIVEN = {
    "pads": ("pads=[1, 0], strides=[2], output_padding=[1]", 9),
    "a size": ('auto_pad="SAME_UPPER", strides=[2], output_padding=[1], output_shape=[7]', 7),
}


@pytest.mark.parametrize("how", GIVEN)
def test_what_is_given_in_numbers_stays_what_it_is(how: str) -> None:
    attributes, size = GIVEN[how]
    text = f"""(float[1,1,4] x, float[1,1,3] w) => (float[] y)
        {{ y = ConvTranspose<{attributes}>(x, w) }}"""
    feeds = {"x": np.ones((1, 1, 4), np.float32), "w": np.ones((1, 1, 3), np.float32)}
    (y,) = InferenceSession(proto(text, 22)).run(None, feeds)
    assert y.shape == prepare(model(text, 22)).graph.outputs[0].shape == (1, 1, size)
