"""Sums of backward loops, which follow them as one product of all iterations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from onnxtrain.kernels.library import default_registry
from onnxtrain.runtime.lower import LowerOptions, lower
from onnxtrain.runtime.obstacle import obstacle
from onnxtrain.types import CUDA
from training.small import model_of, normal
from transforms.backward.looped import (
    CONSTANTS,
    ROWS,
    WEIGHTS,
    D,
    H,
    T,
    by_torch,
    drawn,
    in_loops,
    model,
    trained,
)  # fmt: skip


@pytest.mark.parametrize("count", [T, 1, 0])
@pytest.mark.parametrize("row", ROWS)
def test_a_step_is_that_of_torch(row: str, count: int) -> None:
    batch = drawn(count)
    loss, weights = by_torch(row, batch)
    for without in ((), ("sum_behind_loops",)):
        one, found = trained(model(row), batch, *without)
        assert found == pytest.approx(loss, rel=1e-5)
        for name, expected in weights.items():
            array = torch.from_numpy(np.asarray(one.parameters[name]))
            torch.testing.assert_close(array, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("row", ["one", "from the end", "two of them"])
def test_nothing_is_added_up_in_the_loop(row: str) -> None:
    batch = drawn(T)
    one, _ = trained(model(row), batch)
    other, _ = trained(model(row), batch, "sum_behind_loops")
    assert "GatherGrad" not in in_loops(one) and "GatherGrad" in in_loops(other)
    assert in_loops(one).count("Gemm") < in_loops(other).count("Gemm")


@pytest.mark.parametrize("without", [(), ("sum_behind_loops",)])
def test_steps_on_a_gpu_wait_for_nothing(without: tuple[str, ...]) -> None:
    """They are recorded then."""
    one, _ = trained(model("one"), drawn(T), *without)
    runner = one.module.runner(training=True)
    bound = list(runner.plan.state)
    plan = lower(runner.model, default_registry(), LowerOptions(CUDA), state=bound)
    assert obstacle(plan) is None


@pytest.mark.parametrize("row", ["some", "two sums"])
def test_places_that_are_always_the_same_stay_in_the_loop(row: str) -> None:
    assert "GatherGrad" in in_loops(trained(model(row), drawn(T))[0])


def test_a_sum_of_something_else_stays_in_the_loop() -> None:
    one, _ = trained(model("none"), drawn(T))
    assert in_loops(one).count("Add") == 2 + 1, "two of the forward pass, and that of y's gradient"


def test_loops_that_carry_no_sequences_stay_as_they_are() -> None:
    batch = drawn(T)
    loss, weights = by_torch("one", batch)
    one, found = trained(model("one", opset=12), batch)
    assert found == pytest.approx(loss, rel=1e-5) and "GatherGrad" in in_loops(one)
    torch.testing.assert_close(
        torch.from_numpy(np.asarray(one.parameters["w"])), weights["w"], rtol=1e-5, atol=1e-6
    )


def test_a_loop_in_a_loop() -> None:
    """The inner one's product becomes a term of the outer one's sum."""
    body = f"""(float[t,{D}] x, int64 n) => (float[{H}] scores) {{
        y = Mul(x, gain)
        scores = Loop(n, true, start) <body = turn
            (int64 i, bool going, float[{H}] before) => (bool on, float[{H}] after) {{
            last = Loop(two, true, before) <body = inner
                (int64 j, bool on_and_on, float[{H}] h) => (bool go, float[{H}] next) {{
                row = Gather<axis=0>(y, j)  flat = Unsqueeze(row, first)
                a = MatMul(flat, w)  up = Unsqueeze(h, first)  c = MatMul(up, u)
                sum = Add(a, c)  down = Squeeze(sum, first)  biased = Add(down, bias)
                next = Tanh(biased)  go = Identity(on_and_on)
            }}>
            after = Identity(last)  on = Identity(going)
        }}>
    }}"""
    start = np.zeros(H, np.float32)
    proto = model_of(body, {**WEIGHTS, **CONSTANTS, "first": np.array([0]), "start": start})
    batch = {"x": normal(T, D, seed=5), "n": np.array(3), "target": normal(H, seed=6)}
    one, loss = trained(proto, batch)
    other, same = trained(proto, batch, "sum_behind_loops")
    assert loss == pytest.approx(same, rel=1e-6)
    for name in WEIGHTS:
        pair = (torch.from_numpy(np.asarray(t.parameters[name])) for t in (one, other))
        torch.testing.assert_close(*pair, rtol=1e-5, atol=1e-6)
        assert not np.array_equal(one.parameters[name], WEIGHTS[name])
