"""A warning names weights that no gradient reaches, and nothing else."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest

from onnxtrain import Trainer, artifacts
from onnxtrain.errors import ParameterError
from training.small import model_of, normal

TWO_HEADS = """(float[N,4] x) => (float[N,3] y, float[N,2] z) {
    h = Tanh(x)  y = MatMul(h, w)  z = MatMul(h, v)
}"""
ROUTED = """(float[N,4] x) => (float[N,3] y) {
    scores = MatMul(x, gate)  best = ArgMax<axis = 1, keepdims = 0>(scores)
    row = Gather(table, best)  h = MatMul(x, w)  y = Add(h, row)
}"""
FLOORED = """(float[N,4] x) => (float[N,3] y) {
    whole = Floor(steps)  h = Add(x, whole)  y = MatMul(h, w)
}"""
CONSTANTS = """(float[N,4] x) => (float[N,3] y) {
    big = Greater(x, bounds)  f = Cast<to = 1>(big)  h = Mul(x, f)  k = MatMul(h, w)
    shape = Cast<to = 7>(sizes)  y = Reshape(k, shape)
}"""


def told(model: onnx.ModelProto, **options: object) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        Trainer(model, loss="cross_entropy", device="cpu", **options)  # type: ignore[arg-type]
    assert all(one.filename == __file__ for one in found)
    return [str(one.message) for one in found if "are not trained" in str(one.message)]


def two_heads() -> onnx.ModelProto:
    return model_of(TWO_HEADS, {"w": normal(4, 3), "v": normal(4, 2)})


def routed() -> onnx.ModelProto:
    return model_of(ROUTED, {"gate": normal(4, 5), "table": normal(5, 3), "w": normal(4, 3)})


def test_the_weights_of_an_output_that_the_loss_does_not_take():
    (text,) = told(two_heads())
    assert text.startswith("weights that no gradient of the loss reaches are not trained: 'v'\n")
    assert "the loss takes 'y'" in text
    assert told(two_heads(), outputs=["y"]) == []  # the user left the other one out


def test_the_same_of_weights_that_are_stored_as_whole_numbers():
    body = """(float[N,4] x) => (float[N,3] y, float[N,2] z) {
        h = Tanh(x)  y = MatMul(h, w)  v = DequantizeLinear(steps, scale)  z = MatMul(h, v)
    }"""
    steps = np.arange(8, dtype=np.int8).reshape(4, 2)
    (text,) = told(model_of(body, {"w": normal(4, 3), "steps": steps, "scale": np.float32(0.1)}))
    assert text.startswith("weights that no gradient of the loss reaches are not trained: 'steps'")


def test_weights_of_which_only_indices_are_made():
    (text,) = told(routed())
    assert "not trained: 'gate'\n" in text
    assert "'gate'" in told(routed(), outputs=["y"])[0]


def test_weights_that_are_rounded():
    (text,) = told(model_of(FLOORED, {"steps": normal(4, seed=1), "w": normal(4, 3)}))
    assert "not trained: 'steps'\n" in text


def test_what_was_not_asked_for_is_not_missed():
    assert told(two_heads(), trainable=["w"]) == []
    assert told(routed(), trainable=["w", "table"]) == []


def test_bounds_and_sizes_are_no_weights():
    arrays = {"bounds": normal(4), "sizes": np.array([-1, 3], np.float32), "w": normal(4, 3)}
    assert told(model_of(CONSTANTS, arrays)) == []


def test_artifacts_refuse_what_no_gradient_reaches(tmp_path):
    with pytest.raises(ParameterError, match="does not depend on 'gate'"):
        artifacts.generate_artifacts(
            routed(),
            ["gate", "w"],
            loss=artifacts.LossType.CrossEntropyLoss,
            artifact_directory=tmp_path,
        )
