"""Parameters of which only a result is in a file are named in a warning."""

import linecache
import warnings
from collections.abc import Callable

import pytest
import telling
import torch
from telling import exported, told, warned


class Results(torch.nn.Module):
    """A sum of two tables, a scale that is a square, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.randn(4, 8)) for _ in range(2))
        self.scale = torch.nn.Parameter(torch.tensor(0.5))
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x + (self.first + self.second[0]))) * self.scale.square()


class Moved(torch.nn.Module):
    """Parameters that are only moved, joined or shifted."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.randn(8)) for _ in range(2))
        self.shift = torch.nn.Parameter(torch.randn(8))
        self.pair = torch.nn.Parameter(torch.randn(2, 8))
        self.table = torch.nn.Embedding(3, 8)
        self.layer = torch.nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * (1 + self.shift) + self.table(torch.zeros(x.shape[:2], dtype=torch.long))
        third, fourth = self.pair.unbind(0)
        x = torch.tanh(x + third) * fourth
        both = torch.cat([self.first, self.second])
        return torch.tanh(self.layer(x) + both).unflatten(-1, (2, 8))[..., 0, :]


class Mixed(torch.nn.Module):
    """Two functions of a share, one parameter that becomes two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.share = torch.nn.Parameter(torch.rand(8))
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.share.square() + self.layer(x) * (1 - self.share)


class Resized(torch.nn.Module):
    """Positions of a grid of patches behind that of a class, for a grid of another size."""

    def __init__(self, old: int, new: int) -> None:
        super().__init__()
        self.old, self.new = old, new
        self.table = torch.nn.Parameter(torch.randn(1, 1 + old * old, 8))
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = self.table[:, 1:].unflatten(1, (self.old, self.old)).permute(0, 3, 1, 2)
        grid = torch.nn.functional.interpolate(grid, size=(self.new, self.new), mode="bicubic")
        rows = torch.cat([self.table[:, :1], grid.permute(0, 2, 3, 1).flatten(1, 2)], 1)
        return self.layer(x.repeat(1, 5, 1)[:, : rows.shape[1]] + rows)


class Smaller(torch.nn.Module):
    """A table of positions of which there are fewer."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.table = torch.nn.Parameter(torch.randn(1, 8, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = torch.nn.functional.interpolate(self.table, size=(2, 2), mode=self.mode)
        return torch.tanh(x + grid.flatten(2).transpose(1, 2))


class Padded(torch.nn.Module):
    """A table and a vector with zeros around them, or cut, and then laid out otherwise."""

    def __init__(self, more: int) -> None:
        super().__init__()
        self.more = more
        self.table = torch.nn.Parameter(torch.randn(1, 8, 4 - 2 * more))
        self.vector = torch.nn.Parameter(torch.randn(8 - more))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.nn.functional.pad(self.table, (self.more, self.more))
        vector = torch.nn.functional.pad(self.vector, (0, self.more))
        return x * vector.view(2, 4).transpose(0, 1).reshape(8) + table.transpose(1, 2)


class Bilinear(torch.nn.Module):
    """A layer of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Bilinear(8, 8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, torch.tanh(x))


class Joined(torch.nn.Module):
    """A weight and a part of another one, the matrix of a layer."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = scale
        self.first, self.second = (torch.nn.Parameter(torch.randn(8, 8)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        second = self.second if self.scale is None else self.second * self.scale
        return torch.nn.functional.linear(x, torch.cat([self.first, second]))


class Distances(torch.nn.Module):
    """Rows of a table, by places that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(9, 8)
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(4)
        places = (places * 2 - places[:, None]).abs().float().exp().clamp(0, 8).long()
        return self.layer(x + self.table(places).mT.permute(0, 2, 1)[0])


class Zeros(torch.nn.Module):
    """A table of zeros, and places in it that tell what they are, or do not."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.table = torch.nn.Embedding(4, 8)
        torch.nn.init.zeros_(self.table.weight)
        self.register_buffer(name, torch.arange(4))
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x + self.table(getattr(self, self.name)[: x.shape[1]]))


class OfItself(torch.nn.Module):
    """A matrix, made of a parameter and the same once more, transposed."""

    def __init__(self, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.make = make
        self.matrix = torch.nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.make(self.matrix)


class Coinciding(torch.nn.Module):
    """Functions of two parameters that begin with the same numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = torch.nn.Parameter(torch.zeros(8))
        self.scale = torch.nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.rate.exp()) + x.flip(1) * self.scale.square()


class Shifted(torch.nn.Module):
    """Scales that begin with one, as the sum of it and of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8, bias=False) for _ in range(3))
        self.scales = torch.nn.ModuleList(Scale() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, scale in zip(self.layers, self.scales, strict=True):
            x = torch.tanh(layer(scale(x)))
        return x


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1.0 + self.weight)


def test_softplus_is_named_since_its_beta_is_not_in_the_file() -> None:
    softplus = torch.nn.Softplus()
    (found,) = warned(exported(OfItself(softplus)))
    assert "'matrix' from 'matrix' (unless beta of its softplus is 1)" in str(found.message)
    (found,) = warned(exported(OfItself(lambda w: softplus(softplus(w)))))
    assert "'softplus_1' from 'matrix'\n" in str(found.message)
    assert not warned(exported(OfItself(softplus), optimize=False))


def test_what_is_the_result_of_others_too_is_not_inverted() -> None:
    (found,) = warned(exported(Coinciding()))
    assert "'exp' from 'rate'" in str(found.message)


def test_results_are_named_with_their_parameters() -> None:
    (found,) = warned(exported(Results()))
    text = str(found.message)
    assert "'add' from 'first', 'second'" in text and "'pow_1' from 'scale'" in text
    assert "layer" not in text and "optimize=False" in text
    assert found.filename == telling.__file__
    assert "Trainer(" in linecache.getline(telling.__file__, found.lineno)


@pytest.mark.parametrize(
    "make",
    [
        lambda w: w + w.T,
        lambda w: w - w.T,
        lambda w: w.triu() + w.triu(1).T,
    ],
    ids=["symmetric", "skew", "triangles"],
)
def test_sums_of_a_parameter_and_itself_are_named(
    make: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    (found,) = warned(exported(OfItself(make)))
    assert "from 'matrix'" in str(found.message)


@pytest.mark.parametrize("make", [Results, Moved])
def test_nothing_is_said_if_the_parameters_are_there(make: type[torch.nn.Module]) -> None:
    assert not warned(exported(make(), optimize=False))


@pytest.mark.parametrize("make", [Moved, Shifted])
def test_nothing_is_said_of_what_was_only_moved_or_shifted(make: type[torch.nn.Module]) -> None:
    assert not warned(exported(make()))


def test_nothing_is_said_of_what_is_not_trained() -> None:
    assert not warned(exported(Results()), trainable=["layer.*"])
    (found,) = warned(exported(Results()), trainable=["first"])
    assert "'add'" in str(found.message) and "'pow_1'" not in str(found.message)


@pytest.mark.parametrize(("old", "new"), [(3, 4), (4, 3), (3, 3)])
def test_tables_that_were_resized_are_named(old: int, new: int) -> None:
    """Numbers tell that there are more than before; if not, there may be as many."""
    (found,) = warned(exported(Resized(old, new)))
    text = str(found.message)
    assert ("'cat' from 'table' (unless its size stayed)" in text) is (new <= old)
    assert "from 'table'" in text


@pytest.mark.parametrize(("mode", "count"), [("nearest", 0), ("area", 1)])
def test_tables_of_which_rows_were_taken_are_not_named(mode: str, count: int) -> None:
    assert len(warned(exported(Smaller(mode)))) == count


@pytest.mark.parametrize(("more", "count"), [(1, 2), (-1, 0)])
def test_zeros_around_parameters_are_told(more: int, count: int) -> None:
    lines = [
        line for one in warned(exported(Padded(more))) for line in str(one.message).split("\n")
    ]
    assert sum("from 'table'" in line or "from 'vector'" in line for line in lines) == count


def test_nothing_is_said_of_sizes_that_were_computed() -> None:
    """The weight of such a layer is stored in another shape, which depends on that of its data."""
    assert not warned(exported(Bilinear()))


def test_what_was_computed_before_it_was_joined_is_named() -> None:
    (found,) = warned(exported(Joined(0.5)))
    assert "from 'first', 'second'" in str(found.message)
    assert not warned(exported(Joined()))


def test_nothing_is_said_of_how_places_were_computed() -> None:
    assert not warned(exported(Distances()))


@pytest.mark.parametrize(("name", "count"), [("places", 1), ("position_ids", 0)])
def test_rows_of_zeros_that_may_be_one_are_named(name: str, count: int) -> None:
    found = warned(exported(Zeros(name)))
    assert len(found) == count and all("from 'table.weight'" in str(o.message) for o in found)


def test_a_parameter_that_is_there_in_two_forms_is_named() -> None:
    (found,) = warned(exported(Mixed()))
    assert "from 'share'" in str(found.message)


class Normalized(torch.nn.Module):
    """Layers with batch normalizations behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv1d(4, 4, 1, bias=False)
        self.norm = torch.nn.BatchNorm1d(4)
        self.back = torch.nn.ConvTranspose1d(4, 4, 1)
        self.other = torch.nn.BatchNorm1d(4)
        self.last = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.other(self.back(torch.relu(self.norm(self.layer(x))))))


def folded(model: bytes, **options: object) -> list[warnings.WarningMessage]:
    return [one for one in told(model, **options) if "folded batch normal" in str(one.message)]


def test_normalizations_that_were_folded_into_layers_are_named() -> None:
    (found,) = folded(exported(Normalized()))
    text = str(found.message)
    assert "'norm' into 'layer.weight'" in text and "'other' into 'back.weight'" in text
    assert "last" not in text and "optimize=False" in text
    assert "Trainer(" in linecache.getline(telling.__file__, found.lineno)


def test_nothing_is_said_of_normalizations_that_are_there_or_of_layers_that_are_not_trained() -> (
    None
):
    assert not folded(exported(Normalized(), optimize=False))
    assert not folded(exported(Normalized()), trainable="last.*")
