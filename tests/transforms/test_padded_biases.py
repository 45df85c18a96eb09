"""Recurrent layers with one bias, for which a converter wrote a second one of zeros."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from onnxtrain import Trainer
from training.small import model_of, normal

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
HIDDEN, LR = 3, 0.1


def layer(op: str, producer: str, recurrent: np.ndarray | None = None, attributes: str = ""):
    """A model of one layer; its second bias is zero unless it is given."""
    size = GATES[op] * HIDDEN
    second = np.zeros((1, size), np.float32) if recurrent is None else recurrent
    weights = {
        "W": normal(1, size, 2),
        "R": normal(1, size, HIDDEN, seed=1),
        "B": np.concatenate([normal(1, size, seed=2), second], 1),
    }
    proto = model_of(
        f"(float[T,N,2] x) => (float[T,D,N,{HIDDEN}] y)"
        f" {{ y = {op}<hidden_size={HIDDEN}{attributes}>(x, W, R, B) }}",
        weights,
    )
    proto.producer_name = producer
    return proto


def halves(proto) -> tuple[np.ndarray, np.ndarray]:
    """By how much one step moves both biases."""
    trainer = Trainer(
        proto,
        loss=lambda outputs, batch: outputs["y"].square().mean(),
        optimizer="sgd",
        lr=LR,
        device="cpu",
    )
    before = trainer.parameters["B"].clone()
    trainer.step({"x": torch.from_numpy(normal(4, 5, 2, seed=3))})
    moved = (trainer.parameters["B"] - before).numpy()
    size = moved.shape[1] // 2
    return moved[:, :size], moved[:, size:]


@pytest.mark.parametrize("op", list(GATES))
@pytest.mark.parametrize("producer", ["tf2onnx", "keras2onnx"])
def test_the_second_bias_stays_zero(op, producer):
    first, second = halves(layer(op, producer))
    alone, _ = halves(layer(op, "pytorch"))
    assert not second.any()
    np.testing.assert_array_equal(first, alone)


@pytest.mark.parametrize("op", list(GATES))
def test_one_of_other_exporters_is_trained(op):
    _, second = halves(layer(op, "pytorch"))
    assert np.abs(second).min() > 0


def test_a_second_bias_that_holds_numbers_is_trained():
    _, second = halves(layer("LSTM", "tf2onnx", normal(1, 4 * HIDDEN, seed=4)))
    assert np.abs(second).min() > 0


def test_biases_of_a_gru_that_count_apart_are_trained():
    _, second = halves(layer("GRU", "tf2onnx", attributes=", linear_before_reset=1"))
    assert np.abs(second).min() > 0
