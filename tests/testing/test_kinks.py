"""The page about ties and kinks says what is computed."""

import pathlib

import pytest
import torch

from onnxtrain.testing import kinks
from onnxtrain.testing.kinks import KINKS, Kink

PAGE = (pathlib.Path(__file__).parents[2] / kinks.PAGE).read_text(encoding="utf-8")
OPS = [kink.case.op for kink in KINKS]


@pytest.mark.parametrize("kink", KINKS, ids=OPS)
def test_the_page_has_the_gradient(kink: Kink) -> None:
    assert kinks.line(kink) in PAGE.splitlines(), (
        "look at it, then: python -m onnxtrain.testing.kinks"
    )


def test_the_page_has_nothing_else() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == OPS


@pytest.mark.parametrize("kink", [k for k in KINKS if k.torch], ids=lambda k: k.case.op)
def test_torch_takes_the_same(kink: Kink) -> None:
    for ours, theirs in zip(kinks.gradients(kink), kinks.by_torch(kink), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=0)
