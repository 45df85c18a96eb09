"""Results of a program against those of torch."""

import math

import pytest
import torch

from onnxtrain.errors import GraphError
from onnxtrain.ortmodule import compared


def test_norms_are_those_of_all_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared, "AT_ONCE", 4)
    ours, theirs = torch.randn(3, 5).t(), torch.randn(3, 5).t()
    gap, size = compared._norms(ours, theirs)
    assert math.isclose(gap, (ours.double() - theirs.double()).norm(), rel_tol=1e-12)
    assert math.isclose(size, theirs.double().norm(), rel_tol=1e-12)


@pytest.mark.parametrize(
    ("ours", "theirs", "fine"),
    [
        ([1.0, math.inf, math.nan], [1.0005, math.inf, math.nan], True),
        ([1.0, -math.inf], [1.0, math.inf], False),
        ([1.0, math.nan], [1.0, 2.0], False),
        ([1.0, 2.0], [1.0, math.nan], False),
        ([1.0, 2.0], [1.0, 2.01], False),
        ([0.0, 0.0], [0.0, 0.0], True),
        ([1e-3, 0.0], [0.0, 0.0], False),
    ],
)
def test_what_is_near(ours: list[float], theirs: list[float], fine: bool) -> None:
    given = torch.tensor(ours), torch.tensor(theirs)
    if fine:
        compared._compare("result 0", *given, drawn=False)
    else:
        with pytest.raises(GraphError, match="result 0 of the exported graph differs from torch's"):
            compared._compare("result 0", *given, drawn=False)
        compared._compare("result 0", *given, drawn=True)


def test_kinds_are_compared_always() -> None:
    message = r"float32\[2\] in the exported graph, and float64\[2\] in torch"
    with pytest.raises(GraphError, match=message):
        compared._compare("result 0", torch.ones(2), torch.ones(2).double(), drawn=True)


def test_autocast_rounds_to_its_type() -> None:
    ours, theirs = torch.ones(2), torch.full((2,), 1.05)
    with torch.autocast("cpu", torch.bfloat16):
        compared._compare("result 0", ours, theirs, drawn=False)
    with pytest.raises(GraphError, match="differs"):
        compared._compare("result 0", ours, theirs, drawn=False)
