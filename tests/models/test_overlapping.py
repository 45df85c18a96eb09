"""Parts of one parameter that a file has one by one are trained as the parameter is."""

import warnings

import pytest
import torch
from followed import exported, follow
from torch import nn

from onnxtrain import Trainer


class Slices(nn.Module):
    """Two parts of a table that have rows in common."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + self.table[:, :4]) * self.table[:, 2:6]


class Whole(nn.Module):
    """A table, and a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + self.table)[:, :2] * self.table[:, 1:3]


class Lengths(nn.Module):
    """Positions of queries and of more keys."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        queries = x[:, :2] + self.positions(torch.arange(2))
        keys = x + self.positions(torch.arange(4))
        return torch.softmax(queries @ keys.mT, -1) @ torch.tanh(keys)


class Columns(nn.Module):
    """Two parts of a matrix that have columns in common."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(8, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.matrix[:, :8]) @ self.matrix[:, 4:]


class Apart(nn.Module):
    """Two parts that have nothing in common."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(8, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.matrix[:, :8]) @ self.matrix[:, 8:]


@pytest.mark.parametrize("make", [Slices, Whole, Lengths, Columns])
def test_what_they_have_in_common_is_one(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module, x = make(), torch.rand(3, 4, 8)
    target = torch.rand_like(module(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = Trainer(exported(module, x), loss="mse", optimizer="sgd", lr=0.1, device="cpu")
    follow(trainer, module, x, target, lr=0.1)


def test_the_parameter_itself_keeps_its_name() -> None:
    trainer = Trainer(exported(Whole(), torch.rand(3, 4, 8)), loss="mse", device="cpu")
    assert {name: list(p.shape) for name, p in trainer.parameters.items()} == {"table": [1, 4, 8]}


def test_parts_that_have_nothing_in_common_stay_as_they_are() -> None:
    trainer = Trainer(exported(Apart(), torch.rand(3, 4, 8)), loss="mse", device="cpu")
    assert [list(p.shape) for p in trainer.parameters.values()] == [[8, 8], [8, 8]]
