"""Parameters that an exporter multiplied, joined or added up with constants are named."""

import torch
from telling import exported, warned


class Coordinates(torch.nn.Module):
    """Layers that compute a bias from coordinates."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("grid", torch.rand(1, 4, 2))
        self.first, self.second = torch.nn.Linear(2, 4096), torch.nn.Linear(4096, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.second(torch.relu(self.first(self.grid)))


def test_products_of_parameters_and_constants_are_named() -> None:
    (found,) = warned(exported(Coordinates()))
    assert "from 'first.weight'" in str(found.message)


def test_weights_that_were_divided_by_their_norm_are_named() -> None:
    layer = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(8, 8))
    (found,) = warned(exported(layer))
    assert "from 'parametrizations.weight.original'" in str(found.message)


class Biases(torch.nn.Module):
    """Biases of which one is always zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.randn(4)) for _ in range(2))
        self.register_buffer("zeros", torch.zeros(4), persistent=False)
        self.layer = torch.nn.Linear(8, 12, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = torch.cat([self.first, self.zeros, self.second])
        return torch.tanh(torch.nn.functional.linear(x, self.layer.weight, bias))[..., :8]


def test_parameters_that_were_joined_with_constants_are_named() -> None:
    (found,) = warned(exported(Biases()))
    assert "'cat' from 'first', 'second'" in str(found.message)


class Levels(torch.nn.Module):
    """Positions as waves, with a learned row for each of two levels added to them."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = torch.nn.Parameter(torch.randn(2, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        waves = torch.sin(torch.arange(2).float()[:, None] * torch.arange(8).float())
        return torch.tanh(x * torch.cat([waves + level for level in self.levels]))


def test_constants_to_which_rows_were_added_before_they_were_joined_are_named() -> None:
    (found,) = warned(exported(Levels()))
    assert "'cat' from 'levels'" in str(found.message)


class Slopes(torch.nn.Module):
    """Distances that many pairs share, with numbers of each pair added to them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(4, 1))
        self.register_buffer("places", (torch.arange(4)[:, None] - torch.arange(4)).abs())
        self.register_buffer("slopes", torch.tensor([[0.0], [1.0]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = (x @ x.transpose(1, 2))[:, None]
        scores = scores * (self.table[self.places][..., 0] + self.slopes[:, None])
        return torch.tanh(scores).mean(1) @ x


def test_sums_of_rows_that_are_there_again_are_named() -> None:
    (found,) = warned(exported(Slopes()))
    assert "from 'table'" in str(found.message)
