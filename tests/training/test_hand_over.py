"""Gradients that become the buffers instead of being copied into them, where nobody else reads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from onnxtrain.kernels.control import in_place_accumulator_v2
from onnxtrain.kernels.library import default_registry
from onnxtrain.runtime.lower import LowerOptions, lower
from onnxtrain.training.trainer import Trainer
from onnxtrain.types import CUDA
from training.small import batch_of, mlp, model_of, normal

DATA = {"x": normal(6, 4, seed=9), "target": normal(6, 3, seed=10)}


def accumulators(trainer: Trainer) -> dict[str, bool]:
    """Which parameters' buffers take over their gradients, as the plan says."""
    steps = trainer.module.runner(training=True).plan.block.steps
    found = [s for s in steps if s.kernel.op == "InPlaceAccumulatorV2"]
    return {
        s.outputs[0].removesuffix("_grad_accumulation_out"): s.keywords["taken"] == "True"
        for s in found
    }


def shifted() -> Trainer:
    """y = (x·w + shift + more)·v, where both shifts have the same gradient, which w's needs too."""
    model = model_of(
        """(float[6,4] x) => (float[6,3] y) {
            h = MatMul(x, w)
            t = Add(h, shift)
            s = Add(t, more)
            y = MatMul(s, v)
        }""",
        {
            "w": normal(4, 5, seed=1),
            "shift": normal(6, 5, seed=2),
            "more": normal(6, 5, seed=4),
            "v": normal(5, 3, seed=3),
        },
    )
    return Trainer(model, loss="mse", device="cpu")


def torch_gradients(trainer: Trainer) -> dict[str, torch.Tensor]:
    leaves = {n: p.detach().clone().requires_grad_() for n, p in trainer.parameters.items()}
    y = (torch.from_numpy(DATA["x"]) @ leaves["w"] + leaves["shift"] + leaves["more"]) @ leaves["v"]
    torch.nn.functional.mse_loss(y, torch.from_numpy(DATA["target"])).backward()
    return {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def test_only_what_nobody_reads_is_taken() -> None:
    taken = accumulators(shifted())
    assert taken["w"] and taken["v"]
    assert taken["shift"] != taken["more"]


def test_gradients_are_right_also_where_two_are_the_same() -> None:
    trainer = shifted()
    expected = torch_gradients(trainer)
    for _ in range(2):
        for name, gradient in trainer.gradients(DATA).items():
            torch.testing.assert_close(gradient, expected[name])


def test_the_buffer_is_the_gradient_itself() -> None:
    trainer = Trainer(mlp(), loss="cross_entropy", device="cpu")
    parameter = trainer.state.parameters["fc1.weight"]
    buffer = parameter.grad_tensor
    assert buffer is not None
    before = buffer.data_ptr()
    trainer.step(batch_of())
    assert parameter.grad_tensor is buffer and buffer.data_ptr() != before


def test_later_batches_are_added() -> None:
    trainer = Trainer(mlp(), loss="cross_entropy", device="cpu", optimizer="sgd", lr=0.0)
    one, other = batch_of(seed=5), batch_of(seed=7)
    alone = [trainer.gradients(batch) for batch in (one, other)]
    trainer.step([one, other])
    for name in alone[0]:
        buffer = trainer.state.parameters[name].grad_tensor
        torch.testing.assert_close(buffer, (alone[0][name] + alone[1][name]) / 2)


def test_a_recorded_step_keeps_its_buffers() -> None:
    trainer = shifted()
    runner = trainer.module.runner(training=True)
    bound = list(runner.plan.state)
    plan = lower(runner.model, default_registry(), LowerOptions(CUDA), state=bound)
    found = [s for s in plan.block.steps if s.kernel.op == "InPlaceAccumulatorV2"]
    assert len(found) == 4 and all(s.keywords["taken"] == "False" for s in found)


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6.0).reshape(3, 2).t(),
        torch.arange(12.0)[:6].reshape(2, 3),
        torch.ones(()).expand(2, 3),
        torch.arange(6, dtype=torch.float64).reshape(2, 3),
    ],
    ids=["transposed", "part", "expanded", "another type"],
)
def test_what_is_laid_out_otherwise_is_copied(value: torch.Tensor) -> None:
    buffer = torch.zeros(2, 3)
    place = buffer.data_ptr()
    in_place_accumulator_v2(buffer, value, [True], taken=True)
    assert buffer.data_ptr() == place
    np.testing.assert_array_equal(buffer, value.float())


def test_memory_that_fits_is_taken() -> None:
    buffer, value = torch.zeros(2, 3), torch.arange(6.0).reshape(2, 3)
    in_place_accumulator_v2(buffer, value, [True], taken=True)
    assert buffer.data_ptr() == value.data_ptr()
    in_place_accumulator_v2(buffer, torch.ones(2, 3), [False], taken=True)
    assert buffer.tolist() == [[1, 2, 3], [4, 5, 6]]
