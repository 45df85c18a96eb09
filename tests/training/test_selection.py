"""Which weights a Selection leaves: biases, the last layers, what is excluded."""

from __future__ import annotations

import onnx
import pytest

from onnxtrain import Trainer
from onnxtrain.errors import ParameterError
from onnxtrain.training.selection import Selection
from training.small import mlp, model_of, normal

SHIFTED = """(float[N,4] x) => (float[N,3] y) {
    other = Transpose(w2)
    turned = Transpose(w1)
    a = MatMul(x, turned)
    b = Add(a, bias)
    c = Relu(b)
    d = MatMul(c, other)
    y = Add(d, table)
}"""


def shifted() -> onnx.ModelProto:
    """Two layers, whose weights are transposed beforehand; a matrix is added to the second."""
    shapes = {"w1": (5, 4), "bias": (5,), "w2": (3, 5), "table": (6, 3)}
    weights = {name: normal(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    return model_of(SHIFTED, weights)


def trained(model: onnx.ModelProto, **rules) -> list[str]:
    trainer = Trainer(model, loss="cross_entropy", device="cpu", trainable=Selection(**rules))
    return list(trainer.parameters)


def test_biases_are_vectors_that_are_added():
    assert trained(shifted(), biases=True) == ["bias"]
    assert trained(mlp(), biases=True) == ["fc1.bias", "fc2.bias"]


def test_layers_are_counted_from_the_end_where_their_weights_are_used():
    assert trained(shifted(), last=1) == ["table"]
    assert trained(shifted(), last=2) == ["w2", "table"]
    assert trained(shifted(), last=3) == ["w1", "bias", "w2", "table"]
    assert trained(mlp(), last=1) == ["fc2.weight", "fc2.bias"]
    with pytest.raises(ParameterError, match="the last 4 layers cannot be trained: 3 have"):
        trained(shifted(), last=4)


def test_every_rule_leaves_fewer():
    assert trained(mlp(), exclude=["fc1.*"]) == ["fc2.weight", "fc2.bias"]
    assert trained(mlp(), include=["*.bias"], exclude=["fc1.*"]) == ["fc2.bias"]
    assert trained(mlp(), last=1, biases=True) == ["fc2.bias"]
    with pytest.raises(ParameterError, match="no parameter matches 'fc3', which is to be frozen"):
        trained(mlp(), exclude=["fc3"])
    with pytest.raises(ParameterError, match="leaves nothing to train"):
        trained(mlp(), exclude=["*"])
