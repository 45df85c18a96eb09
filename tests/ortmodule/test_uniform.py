"""Numbers of which it is known that they are at least 0 and below 1."""

import operator
from collections.abc import Callable

import pytest
import torch

from onnxtrain.ortmodule.uniform import Uniform, draws_known_in_part


def refused() -> torch.Tensor:
    raise AssertionError("it is not to be drawn")


@pytest.mark.parametrize(
    ("compare", "number", "expected"),
    [
        (operator.lt, 0.0, False),
        (operator.lt, 1, True),
        (operator.le, -0.5, False),
        (operator.le, 1.0, True),
        (operator.gt, -1e-9, True),
        (operator.gt, 1.0, False),
        (operator.ge, 0.0, True),
        (operator.ge, 1.0, False),
    ],
)
def test_what_is_known(
    compare: Callable[[object, float], object], number: float, expected: bool
) -> None:
    assert compare(Uniform(refused), number) is expected


@pytest.mark.parametrize("number", [0.0, 0.5, 1.0])
def test_what_is_not_known_is_drawn(number: float) -> None:
    draw = Uniform(lambda: torch.tensor(0.25))
    assert bool(draw < 0.3) and not bool(draw > 0.3)
    assert bool(draw <= 0.25) and bool(draw >= 0.25)
    assert (draw + number).item() == 0.25 + number == (number + draw).item()
    assert torch.mul(draw, 4).item() == 1.0
    assert draw.item() == float(draw) == 0.25


def test_draws_of_one_number_alone() -> None:
    before = torch.rand
    with draws_known_in_part():
        assert isinstance(torch.rand([]), Uniform)
        assert torch.rand(2).shape == (2,) and torch.rand((), dtype=torch.float64).ndim == 0
        torch.manual_seed(0)
        found = torch.rand([]) * 1
    assert torch.rand is before
    torch.manual_seed(0)
    assert torch.equal(found, torch.rand([]))
