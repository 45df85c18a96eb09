"""Norms of many numbers on a CPU, of which torch adds up the squares one behind the other."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from onnxtrain.kernels.optimizer.sequence import clip_factor
from onnxtrain.kernels.reduction.norm import all_l2
from onnxtrain.kernels.reduction.reduce import l2

ROWS, COLUMNS = 4, 1 << 19
WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "ReduceAllL2": all_l2,
    "ReduceAllL2 of several": lambda x: all_l2(*x),
    "ReduceL2": lambda x: l2(x, (0, 1), False),
    "ReduceL2 of rows": lambda x: l2(l2(x, (1,), False), (0,), False),
    "ReduceL2 with axes of one": lambda x: l2(x, (0, 1), True)[0, 0],
    "ClipFactor": lambda x: 1 / clip_factor([x], max_norm=1.0) - 1e-6,
}


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("name", WAYS)
def test_norms_of_many_numbers(name: str, step: int) -> None:
    """Also with others between them, where torch has one lane."""
    x = torch.randn(ROWS, step * COLUMNS, generator=torch.Generator().manual_seed(0))[:, ::step]
    found, true = WAYS[name](x), x.double().norm()
    assert found.shape == () and found.dtype is torch.float32
    assert abs(float(found / true) - 1) < 1e-6
