"""Values in the order in which they lie in memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from onnxtrain.kernels.tensor.memory import from_memory_order, in_memory_order

X = torch.arange(120.0).reshape(2, 3, 4, 5)
DENSE = {
    "as it is": X,
    "channels last": X.contiguous(memory_format=torch.channels_last),
    "turned": X.permute(3, 1, 0, 2),
    "a single channel": X[:, :1].contiguous(memory_format=torch.channels_last),
    "one row": X.reshape(1, -1, 1),
    "scalar": torch.tensor(3.0),
    "nothing": torch.empty(3, 0, 2),
}
OTHERS = {"with gaps": X[:, :, :, ::2], "repeated": X[:1].expand(4, -1, -1, -1)}


def back(x: Tensor, further: int = 0) -> Tensor:
    flat, axes = in_memory_order(x)
    padded = torch.cat([flat, flat.new_zeros(further)])
    return from_memory_order(padded, axes.tolist(), list(x.shape))


@pytest.mark.parametrize("name", DENSE)
def test_nothing_is_moved(name: str) -> None:
    x = DENSE[name]
    flat, _ = in_memory_order(x)
    assert flat.shape == (x.numel(),) and flat.data_ptr() == x.data_ptr()
    for found in (back(x), back(x, further=5)):
        assert torch.equal(found, x)
        sizes = zip(x.shape, x.stride(), found.stride(), strict=True)
        assert all(a == b for size, a, b in sizes if size > 1)


@pytest.mark.parametrize("name", OTHERS)
def test_what_has_gaps_is_taken_row_by_row(name: str) -> None:
    x = OTHERS[name]
    flat, axes = in_memory_order(x)
    assert torch.equal(flat, x.flatten()) and axes.tolist() == [0, 1, 2, 3]
    assert torch.equal(back(x), x) and back(x).is_contiguous()
