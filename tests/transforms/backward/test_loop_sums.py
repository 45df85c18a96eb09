"""Sums of backward loops, which follow them as one product of all iterations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from onnxtrain import Trainer
from onnxtrain.transforms import recipe
from onnxtrain.transforms.backward import join
from training.small import model_of, normal

B, T, D, H = 3, 4, 5, 6
WEIGHTS: dict[str, np.ndarray] = {
    "gain": normal(D, seed=1), "w": normal(D, H, seed=2), "u": normal(H, H, seed=3),
    "bias": normal(H, seed=4),
}  # fmt: skip
CONSTANTS = {
    "zero": np.zeros(1, np.float32), "width": np.array([H]), "true": np.array(True),
    "two": np.array(2), "places": np.array([0, 2, -1]), "second": np.array([1]),
}  # fmt: skip
CELL = """
    a = MatMul(row, w)  c = MatMul(before, u)  both = Add(a, c)  biased = Add(both, bias)
    after = Tanh(biased)  on = Identity(going)
"""
Row = Callable[[Tensor, int, int], Tensor]
ROWS: dict[str, tuple[str, Row]] = {
    "one": ("row = Gather<axis=1>(y, i)", lambda y, i, n: y[:, i]),
    "from the end": (
        "back = Sub(i, n) row = Gather<axis=-2>(y, back)",
        lambda y, i, n: y[:, i - n],
    ),
    "some": (
        "some = Gather<axis=1>(y, places) row = ReduceSum<keepdims=0>(some, second)",
        lambda y, i, n: y[:, [0, 2, -1]].sum(1),
    ),
    "two sums": (
        """one = Gather<axis=1>(y, i) other = Gather<axis=1>(y, two)
        half = MatMul(other, square) row = Add(one, half)""",
        lambda y, i, n: y[:, i] + y[:, 2] @ torch.eye(D),
    ),
    "two of them": (
        """back = Sub(i, n) one = Gather<axis=1>(y, i) other = Gather<axis=1>(y, back)
        row = Mul(one, other)""",
        lambda y, i, n: y[:, i] * y[:, i - n],
    ),
    "none": ("row = ReduceMean<axes=[1], keepdims=0>(y)", lambda y, i, n: y.mean(1)),
}


def model(row: str, opset: int = 17) -> onnx.ModelProto:
    body = f"""(float[b,t,{D}] x, int64 n) => (float[b,{H}] scores) {{
        y = Mul(x, gain)
        rows = Shape(x) batch = Gather(rows, first) sizes = Concat<axis=0>(batch, width)
        start = Expand(zero, sizes)
        scores = Loop(n, true, start) <body = turn
            (int64 i, bool going, float[b,{H}] before) => (bool on, float[b,{H}] after) {{
            {ROWS[row][0]} {CELL}
        }}>
    }}"""
    more = {
        "first": np.array([0]),
        "first_one": np.array([1]),
        "square": np.eye(D, dtype=np.float32),
    }
    return model_of(body, {**WEIGHTS, **CONSTANTS, **more}, opset=opset)


def by_torch(row: str, batch: dict[str, Any]) -> tuple[float, dict[str, Tensor]]:
    """The loss, and weights after one step with the rate 0.1."""
    given = {name: torch.from_numpy(array).requires_grad_() for name, array in WEIGHTS.items()}
    y = torch.from_numpy(batch["x"]) * given["gain"]
    h = torch.zeros(B, H)
    count = int(batch["n"])
    for i in range(count):
        h = torch.tanh(ROWS[row][1](y, i, count) @ given["w"] + h @ given["u"] + given["bias"])
    loss = (h - torch.from_numpy(batch["target"])).square().mean()
    if count:
        loss.backward()
    none = torch.zeros(())
    return float(loss.detach()), {
        name: (t - 0.1 * (none if t.grad is None else t.grad)).detach() for name, t in given.items()
    }


def trained(proto: onnx.ModelProto, batch: dict[str, Any], *without: str) -> tuple[Trainer, float]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "join", lambda model, **_: join(model, without=without))
        names = list(WEIGHTS)
        one = Trainer(proto, loss="mse", optimizer="sgd", lr=0.1, device="cpu", trainable=names)
        return one, float(one.step(batch))


def in_loops(trainer: Trainer) -> list[str]:
    """Operators of all bodies of the backward pass."""
    steps = trainer.module.runner(training=True).plan.block.steps
    return [s.kernel.op for step in steps for block in step.nested for s in block.walk()]


def drawn(count: int) -> dict[str, Any]:
    return {
        "x": normal(B, T, D, seed=5),
        "n": np.array(count),
        "target": normal(B, H, seed=6),
    }


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
