"""Gradients in float16 and bfloat16: as close to float64 as torch's own in the same type."""

import pytest
import torch

from onnxtrain.testing import gradcheck, trials
from onnxtrain.testing.case import Case
from onnxtrain.testing.close import largest_error, mismatch
from onnxtrain.types import DataType, dtype_name

HALVES = (DataType.FLOAT16, DataType.BFLOAT16)
TRIALS = [
    pytest.param(case, dtype, id=f"{case}-{dtype_name(dtype)}")
    for dtype in HALVES
    for case in trials.in_half(dtype)
]


@pytest.mark.parametrize(("case", "dtype"), TRIALS)
def test_gradient_in_few_digits(case: Case, dtype: DataType) -> None:
    at = gradcheck.drawn(case, dtype)
    exact = gradcheck.by_autograd(gradcheck.widened(at))
    own = _by_torch(at) or exact
    for ours, true, rough in zip(gradcheck.by_graph(at), exact, own, strict=True):
        assert mismatch(ours, true, largest_error(rough, true)) is None


def _by_torch(at: gradcheck.Point) -> list[torch.Tensor] | None:
    """None for the few operators that torch does not have in a type."""
    try:
        return gradcheck.by_autograd(at)
    except (RuntimeError, NotImplementedError):
        return None


def test_most_rules_are_tried_in_each_type() -> None:
    for dtype in HALVES:
        assert len({(case.domain, case.op) for case in trials.in_half(dtype)}) > 180
