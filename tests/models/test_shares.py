"""Learned numbers, alone or all equal, that torch's exporter computes others from, are trained."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import onnxruntime
import pytest
import torch
from followed import exported, trained_as_in_torch
from torch import Tensor

from onnxtrain import Trainer

WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "rest": lambda x, y, a: x * a + y * (1 - a),
    "less": lambda x, y, a: x * a + y * (a - 1),
    "more": lambda x, y, a: x * a + y * (1 + a),
    "multiple": lambda x, y, a: x * a + y * (a * 2.5),
    "twice": lambda x, y, a: x * a + y * a,
    "again": lambda x, y, a: torch.tanh(x * a + y * (1 - a)) * a + y.sin() * (1 - a),
    "alone": lambda x, y, a: x + y * (1 - a),
}


class Mixed(torch.nn.Module):
    """What a layer makes of x, and x, mixed by a learned share."""

    def __init__(self, way: str, shape: tuple[int, ...], begin: float) -> None:
        super().__init__()
        self.way = way
        self.layer = torch.nn.Linear(6, 6)
        self.share = torch.nn.Parameter(torch.full(shape, begin))

    def forward(self, x: Tensor) -> Tensor:
        return WAYS[self.way](torch.tanh(self.layer(x)), x, self.share)


class Pair(torch.nn.Module):
    """Two shares of one module, which begin alike."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 6)
        self.first, self.second = (torch.nn.Parameter(torch.tensor(0.7)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.first + self.layer(x) * (1 - self.first)
        return y * self.second + x.sin() * (1 - self.second)


@pytest.mark.parametrize(("shape", "begin"), [((), 0.5), ((), 0.7), ((6,), 0.5), ((1, 6), 0.3)])
@pytest.mark.parametrize("way", WAYS)
def test_a_share_is_trained_as_in_torch(way: str, shape: tuple[int, ...], begin: float) -> None:
    torch.manual_seed(0)
    trained_as_in_torch(Mixed(way, shape, begin))


@pytest.mark.parametrize("shape", [(), (6,)])
@pytest.mark.parametrize("begin", [0.5, 0.7])
def test_each_layer_has_a_share_of_its_own(
    begin: float, shape: tuple[int, ...], tmp_path: pathlib.Path
) -> None:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(Mixed("rest", shape, begin), Mixed("rest", shape, begin))
    trainer = trained_as_in_torch(layers)
    shares = [trainer.parameters[f"{place}.share"] for place in (0, 1)]
    assert not torch.equal(*shares)
    trainer.save(tmp_path / "trained.onnx")
    x = torch.randn(4, 6)
    found = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found[0]), layers(x).detach())


def test_results_of_shares_that_begin_alike_are_not_guessed() -> None:
    torch.manual_seed(0)
    file = exported(Pair(), torch.randn(4, 6))
    with pytest.warns(UserWarning, match="'sub' from 'first'"):
        Trainer(file, loss="mse", device="cpu")
