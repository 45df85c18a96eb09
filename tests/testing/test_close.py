import math

import pytest
import torch

from onnxtrain.testing.close import FLOOR, largest_error, mismatch

TRUTH = torch.tensor([1.0, -8.0, 3.0], dtype=torch.float64)
EPS = torch.finfo(torch.float32).eps


def test_the_bound_is_twice_torch_s_error_plus_a_floor() -> None:
    for own in (0.0, 1e-3):
        allowed = 2 * own + FLOOR * EPS * 8
        inside, outside = TRUTH.clone(), TRUTH.clone()
        inside[0] += allowed * 0.9
        outside[0] += allowed * 1.1
        assert mismatch(inside.float(), TRUTH, own) is None
        assert "is above" in str(mismatch(outside.float(), TRUTH, own))


def test_a_mismatch_says_where() -> None:
    wrong = TRUTH.float()
    wrong[2] = 4
    assert "at [2]: 4.0 instead of 3.0" in str(mismatch(wrong, TRUTH, 0.0))


@pytest.mark.parametrize(
    ("ours", "truth"),
    [(math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0), (math.inf, -math.inf), (1.0, math.inf)],
)
def test_nan_and_infinity_must_match(ours: float, truth: float) -> None:
    a, b = torch.tensor([ours, 1.0]), torch.tensor([truth, 1.0], dtype=torch.float64)
    assert "NaN or infinity differ" in str(mismatch(a, b, 1e9))
    assert mismatch(b.float(), b, 0.0) is None


def test_what_overflows_in_the_type_must_be_infinite() -> None:
    truth = torch.tensor([1e6, 1.0], dtype=torch.float64)
    assert mismatch(torch.tensor([math.inf, 1.0], dtype=torch.float16), truth, 0.0) is None
    assert mismatch(torch.tensor([6e4, 1.0], dtype=torch.float16), truth, 0.0) is not None


def test_infinite_errors_of_torch_allow_nothing() -> None:
    own = largest_error(torch.tensor([math.inf, 1.0]), torch.tensor([2.0, 1.0]))
    assert own == 0.0


def test_whole_numbers_must_be_equal() -> None:
    truth = torch.tensor([1, 200])
    assert mismatch(torch.tensor([1, 200]), truth, 1e9) is None
    assert mismatch(torch.tensor([1, 201]), truth, 1e9) is not None
    assert mismatch(torch.tensor([1, 200], dtype=torch.uint16), truth, 0.0) is None
    assert mismatch(torch.tensor([True]), torch.tensor([False]), 0.0) is not None
    half = torch.tensor([1.5], dtype=torch.float64)
    assert mismatch(torch.tensor([1]), half, 0.0) is not None


def test_type_and_shape_must_be_equal() -> None:
    assert "element type" in str(mismatch(TRUTH.float(), TRUTH, 0.0, torch.float64))
    assert "shape" in str(mismatch(TRUTH.float()[None], TRUTH, 0.0))
    assert mismatch(torch.zeros(0), torch.zeros(0, dtype=torch.float64), 0.0) is None
    assert "shape" in str(mismatch(torch.zeros(0, 1), torch.zeros(0), 0.0))
    assert "instead of a tensor" in str(mismatch(None, TRUTH, 0.0))


def test_sequences_are_compared_item_by_item() -> None:
    assert mismatch([TRUTH.float()], [TRUTH], 0.0) is None
    assert "element 1" in str(mismatch([TRUTH, TRUTH + 1], [TRUTH, TRUTH], 0.0))
    assert "sequence of 2" in str(mismatch([TRUTH], [TRUTH, TRUTH], 0.0))
