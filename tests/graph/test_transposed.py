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
