"""Parameters that a call multiplies by a number, or expands from one, are trained as in torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from followed import exported, trained_as_in_torch
from telling import warned
from torch import Tensor

PLACES = torch.arange(6)
Way = Callable[["Named", Tensor], Tensor]
WAYS: dict[str, Way] = {
    "add": lambda m, x: torch.add(x, m.weight, alpha=0.5),
    "sub": lambda m, x: torch.sub(x, m.weight.view(1, 6), alpha=2),
    "subtracted": lambda m, x: torch.rsub(m.weight, x, alpha=-3),
    "product": lambda m, x: torch.addcmul(m.bias, m.weight, x, value=0.25),
    "plain product": lambda m, x: torch.addcmul(m.bias.view(1, 6), m.weight.view(1, 6), x),
    "products": lambda m, x: torch.baddbmm(m.weight, x[None], (x.T @ x)[None], beta=0.5)[0],
    "outer product": lambda m, x: x + torch.addr(m.weight, x[:, 0], x[0], beta=2.0, alpha=0.1),
    "both": lambda m, x: torch.add(x, m.weight, alpha=0.5) * m.weight,
    "alike": lambda m, x: torch.add(x, m.weight, alpha=0.5) * torch.add(x, m.bias, alpha=0.5),
    "shifted": lambda m, x: x * (m.weight + torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 2.0])),
    "repeated": lambda m, x: x * m.part.repeat(2),
    "distances": lambda m, x: x @ m.weight[(PLACES - PLACES[:, None]).abs()],
    "number": lambda m, x: x * m.number.expand(6),
    "view of a number": lambda m, x: x * m.number.view(()).expand(6),
}


class Named(torch.nn.Module):
    """Those parameters that a way reads, and a layer that mixes the result."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.way = way
        self.weight, self.bias = (torch.nn.Parameter(torch.randn(6)) for _ in range(2))
        self.number = torch.nn.Parameter(torch.tensor([0.7]))
        self.part = torch.nn.Parameter(torch.randn(3))
        self.table = torch.nn.Parameter(torch.randn(2, 6))
        self.mix = torch.nn.Parameter(torch.randn(6, 6))
        self(torch.ones(4, 6)).sum().backward()
        for name, parameter in list(self.named_parameters()):
            if parameter.grad is None:
                delattr(self, name)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.way(self, x))
        return y @ self.mix[: y.shape[-1]]


@pytest.mark.parametrize("way", WAYS)
def test_such_parameters_are_trained_as_in_torch(way: str) -> None:
    torch.manual_seed(0)
    trained_as_in_torch(Named(WAYS[way]))


OTHERS: dict[str, Way] = {
    "two multiples": lambda m, x: (
        torch.add(x, m.weight, alpha=0.5) + torch.add(x.sin(), m.weight, alpha=0.25)
    ),
    "differences": lambda m, x: x[:, :5] * m.weight.diff(),
    "halves": lambda m, x: x[:, :3] * (m.weight[:3] + m.weight[3:]),
    "rounded": lambda m, x: x * (m.weight + (m.weight.round() - m.weight).detach()),
    "larger": lambda m, x: x * (1 + m.weight.clamp_min(0.0)),
    "zeros before": lambda m, x: x * torch.cat([torch.zeros(1), m.weight[1:]]),
    "ones below": lambda m, x: x * torch.stack([m.weight, torch.ones(6)]).sum(0),
    "twice": lambda m, x: torch.cat([x, x.sin()], 1)[:, :6] * torch.cat([m.part, m.part]),
    "with its negative": lambda m, x: x * torch.cat([m.part, -m.part]),
    "one place again": lambda m, x: x * m.weight[torch.tensor([0, 1, 2, 3, 4, 0])],
    "matrix of a number": lambda m, x: x[:, None] * m.number.expand(3, 6),
    "row of a number": lambda m, x: x * m.number.view(1, 1).expand(1, 6)[0],
}


@pytest.mark.parametrize("way", OTHERS)
def test_what_is_trained_otherwise_is_named(way: str) -> None:
    torch.manual_seed(0)
    (found,) = warned(exported(Named(OTHERS[way]), torch.randn(4, 6)))
    named = {f"from '{name}'" for name in ("weight", "number", "part")}
    assert any(name in str(found.message) for name in named)


@pytest.mark.parametrize(
    "way",
    [
        lambda m, x: x[:, :3] * (m.table[:1, :3] + 1),
        lambda m, x: x[:, None] * torch.stack([m.weight, m.bias], 1).view(2, 6),
    ],
)
def test_nothing_is_said_of_parts_and_numbers_and_of_what_was_only_put_together(way: Way) -> None:
    torch.manual_seed(0)
    assert not warned(exported(Named(way), torch.randn(4, 6)))


class Response(torch.nn.LayerNorm):
    """What is multiplied and added, but not normalized."""

    def forward(self, input: Tensor) -> Tensor:
        return torch.addcmul(self.bias.view(1, 6), self.weight.view(1, 6), input)


class Zeros(torch.nn.Module):
    """Layers whose parameters all begin as zeros."""

    def __init__(self, kind: type[torch.nn.LayerNorm]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 6)
        self.norms = torch.nn.ModuleList(kind(6) for _ in range(2))
        for norm in self.norms:
            torch.nn.init.zeros_(norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        for norm in self.norms:
            x = x + norm(self.layer(x).tanh())
        return x


@pytest.mark.parametrize("kind", [torch.nn.LayerNorm, Response])
def test_parameters_of_one_call_that_begin_as_zeros_are_trained_as_in_torch(
    kind: type[torch.nn.LayerNorm],
) -> None:
    torch.manual_seed(0)
    trained_as_in_torch(Zeros(kind))
