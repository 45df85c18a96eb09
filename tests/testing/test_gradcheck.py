import pytest
import torch

from onnxtrain.testing import gradcheck
from onnxtrain.testing.case import Case, integers, normal
from onnxtrain.testing.gradcheck import Point
from onnxtrain.testing.model import draw, evaluate
from onnxtrain.types import DataType

MUL = Case("Mul", [normal(2, 3), normal(3)], torch.mul)


@pytest.fixture
def at() -> Point:
    inputs = draw(MUL, DataType.DOUBLE)
    return gradcheck.point(MUL, inputs, evaluate(MUL, inputs))


def test_three_ways_agree(at: Point) -> None:
    ours, torchs = gradcheck.by_graph(at), gradcheck.by_autograd(at)
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(ours, torchs, strict=True))
    direction = gradcheck.random_direction(at, 0)
    slope = gradcheck.by_differences(at, direction)
    assert abs(gradcheck.along(direction, ours).value - slope.value) < 1e-9 * slope.magnitude


def test_a_small_mistake_shows_in_the_difference(at: Point) -> None:
    wrong = [grad * (1 + 1e-4) for grad in gradcheck.by_autograd(at)]
    direction = gradcheck.random_direction(at, 0)
    slope = gradcheck.by_differences(at, direction)
    assert abs(gradcheck.along(direction, wrong).value - slope.value) > 1e-6 * slope.magnitude


def test_only_floating_point_inputs_that_ask_for_it_are_differentiated() -> None:
    case = Case("Gather", [normal(3, 2), integers(2, high=3)], None)
    assert gradcheck.differentiable(case, draw(case, DataType.DOUBLE)) == [0]
    fixed = Case("Mul", [normal(2).no_grad(), normal(2)], torch.mul)
    assert gradcheck.differentiable(fixed, draw(fixed, DataType.DOUBLE)) == [1]


def test_an_output_that_is_not_differentiable_has_a_gradient_of_zero() -> None:
    case = Case("Floor", [normal(3)], lambda x: x.detach().floor())
    inputs = draw(case, DataType.DOUBLE)
    found = gradcheck.by_autograd(gradcheck.point(case, inputs, evaluate(case, inputs)))
    assert found[0].tolist() == [0, 0, 0]
