"""Loops that push and pop by themselves what their backward pass needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from onnxtrain import InferenceSession, Trainer
from onnxtrain.kernels.control_flow import stack_loop
from training.small import model_of, normal
from transforms.backward.looped import WEIGHTS, D, H, T, drawn, model, trained

ON_SEQUENCES = {"SequenceInsert", "SequenceCut", "SequenceAt"}


def all_ops(trainer: Any) -> list[str]:
    block = trainer.module.runner(training=True).plan.block
    return [step.kernel.op for step in block.walk()]


@pytest.mark.parametrize("row", ["one", "two of them", "some", "none"])
@pytest.mark.parametrize("count", [T, 0])
def test_no_sequence_is_made_in_a_loop(row: str, count: int) -> None:
    batch = drawn(count)
    one, loss = trained(model(row), batch)
    other, expected = trained(model(row), batch, "run_on_stacks")
    assert not ON_SEQUENCES & {*all_ops(one)} and all_ops(one).count("StackLoop") == 2
    assert {*all_ops(other)} >= ON_SEQUENCES
    assert loss == expected
    for name in WEIGHTS:
        np.testing.assert_array_equal(one.parameters[name], other.parameters[name])


def test_values_of_other_shapes_in_every_iteration() -> None:
    """Rows of a tensor could not hold them."""
    body = f"""(float[t,{D}] x, int64 n) => (float[{H}] scores) {{
        scores = Loop(n, true, start) <body = turn
            (int64 i, bool going, float[{H}] before) => (bool on, float[{H}] after) {{
            more = Add(i, one)  end = Unsqueeze(more, first)
            some = Slice(x, first, end, first)
            a = MatMul(some, w)  bent = Tanh(a)  sum = ReduceSum<keepdims=0>(bent, first)
            after = Add(before, sum)  on = Identity(going)
        }}>
    }}"""
    given = {
        "w": normal(D, H, seed=1), "start": np.zeros(H, np.float32), "true": np.array(True),
        "first": np.array([0]), "one": np.array(1),
    }  # fmt: skip
    batch = {"x": normal(T, D, seed=5), "n": np.array(T), "target": normal(H, seed=6)}
    one, loss = trained_on(model_of(body, given), batch)
    assert all_ops(one).count("StackLoop") == 2
    w = torch.from_numpy(given["w"]).requires_grad_()
    x = torch.from_numpy(batch["x"])
    scores = sum(torch.tanh(x[: i + 1] @ w).sum(0) for i in range(T))
    expected = (scores - torch.from_numpy(batch["target"])).square().mean()
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    found = torch.from_numpy(np.asarray(one.parameters["w"]))
    torch.testing.assert_close(found, (w - 0.1 * w.grad).detach(), rtol=1e-5, atol=1e-6)


def trained_on(proto: Any, batch: dict[str, Any]) -> tuple[Any, float]:
    one = Trainer(proto, loss="mse", optimizer="sgd", lr=0.1, device="cpu", trainable=["w"])
    return one, float(one.step(batch))


def test_loops_that_push_what_is_outside_of_both() -> None:
    """A backward pass that needs nothing but the number of iterations counts true values."""
    loop = """Loop(n, true, {0}) <body = {1}
        (int64 i{1}, bool g{1}, float[{H}] b{1}) => (bool o{1}, float[{H}] a{1}) {{
        a{1} = Add(b{1}, w) o{1} = Identity(g{1})
    }}>"""
    first, second = loop.format("start", "p", H=H), loop.format("once", "q", H=H)
    body = f"""(float[{H}] x, int64 n) => (float[{H}] scores) {{
        once = {first} twice = {second} scores = Mul(twice, x)
    }}"""
    given = {
        "w": normal(H, seed=1), "start": np.zeros(H, np.float32), "true": np.array(True),
    }  # fmt: skip
    batch = {"x": normal(H, seed=5), "n": np.array(T), "target": normal(H, seed=6)}
    one, loss = trained_on(model_of(body, given), batch)
    assert all_ops(one).count("StackLoop") == 4
    w = torch.from_numpy(given["w"]).requires_grad_()
    scores = 2 * T * w * torch.from_numpy(batch["x"])
    expected = (scores - torch.from_numpy(batch["target"])).square().mean()
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    found = torch.from_numpy(np.asarray(one.parameters["w"]))
    torch.testing.assert_close(found, (w - 0.1 * w.grad).detach(), rtol=1e-5, atol=1e-6)


def test_sequences_that_somebody_wants_stay_what_they_are() -> None:
    """In inference nothing is rewritten, and results of a user's own loop are sequences."""
    body = """(int64 n) => (seq(int64[1]) all) {
        none = SequenceEmpty<dtype=7>()
        all = Loop(n, true, none) <body = turn
            (int64 i, bool going, seq(int64[1]) before) => (bool on, seq(int64[1]) after) {
            row = Unsqueeze(i, first)  after = SequenceInsert(before, row)  on = Identity(going)
        }>
    }"""
    proto = model_of(body, {"true": np.array(True), "first": np.array([0])})
    (found,) = InferenceSession(proto.SerializeToString()).run(None, {"n": np.array(3)})
    assert [int(item[0]) for item in found] == [0, 1, 2]


def turn(i: torch.Tensor, going: torch.Tensor, total: torch.Tensor, item: torch.Tensor) -> Any:
    return going, total + item, item * 2, i


FACTS: dict[str, Any] = {"out_types": [(1, None)] * 3, "device": torch.device("cpu")}
ITEMS = [torch.tensor([1.0]), torch.tensor([10.0])]


def test_the_last_element_comes_first() -> None:
    given = {"body": turn, "pops": 1, "pushes": 1, "wanted": (True,) * 3, **FACTS}
    total, doubled, rows = stack_loop(2, None, torch.zeros(1), ITEMS, **given)
    assert total == 11 and [float(x) for x in doubled] == [20, 2] and rows.tolist() == [0, 1]
    assert len(ITEMS) == 2, "the sequence is as it was"


def test_more_iterations_than_elements_are_refused() -> None:
    given = {"body": turn, "pops": 1, "pushes": 1, "wanted": (True,) * 3, **FACTS}
    with pytest.raises(
        ValueError, match=r"^there are 2 elements to be taken, but more iterations$"
    ):
        stack_loop(3, None, torch.zeros(1), ITEMS, **given)
