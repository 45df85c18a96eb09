"""Defaults that ONNX's inference misreads."""

from __future__ import annotations

from graph.text import proto
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare


def test_a_spectrum_is_one_sided_unless_it_is_told_otherwise():
    text = (
        "(float[1,64,1] x, float[32] window) => (float[a,b,c,d] y) "
        "<int64 hop = {16}, int64 length = {32}> { y = STFT(x, hop, window, length) }"
    )
    model = prepare(load_model(proto(text)))
    assert list(model.graph.outputs[0].shape) == [1, 3, 17, 2]
