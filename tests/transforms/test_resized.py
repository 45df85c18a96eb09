"""Whether numbers tell that a table of positions was enlarged."""

import numpy as np
import pytest
import torch

from onnxtrain.transforms.weights.resized import is_enlarged


def resized(old: tuple[int, int], new: tuple[int, int], mode: str, before: int) -> np.ndarray:
    torch.manual_seed(0)
    grid = torch.nn.functional.interpolate(torch.randn(1, 16, *old), size=new, mode=mode)
    rows = grid.permute(0, 2, 3, 1).flatten(1, 2)
    return torch.cat([torch.randn(1, before, 16), rows], 1).numpy()


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize(
    ("old", "new", "enlarged"),
    [
        ((4, 4), (6, 6), True),
        ((4, 4), (4, 6), True),
        ((4, 4), (6, 4), True),
        ((4, 4), (4, 4), False),
        ((6, 6), (4, 4), False),
    ],
)
def test_rows_of_a_grid(
    old: tuple[int, int], new: tuple[int, int], enlarged: bool, before: int, mode: str
) -> None:
    assert is_enlarged(resized(old, new, mode, before)) is enlarged


@pytest.mark.parametrize("numbers", [np.zeros((1, 9, 16)), np.ones(()), np.full((4, 8), np.nan)])
def test_numbers_that_tell_nothing(numbers: np.ndarray) -> None:
    assert not is_enlarged(numbers)
