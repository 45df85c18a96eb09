"""A recurrent network whose steps are an ONNX Loop, by what its body takes, and as torch has it."""

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
