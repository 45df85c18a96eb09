"""New tensors that are cut out of one piece of memory."""

import pytest
import torch

from onnxtrain.kernels import fast
from onnxtrain.kernels.fast.common import flat

SHAPES = [(3, 5), (8,), (), (7,), (2, 3, 4), (1, 1), (2, 5), (9,), (16, 5), ()]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("shapes", [SHAPES, [(8,), (4, 4)]])
def test_tensors_lie_apart_and_begin_where_wide_loads_may(
    shapes: list[tuple[int, ...]], dtype: torch.dtype
) -> None:
    plan = flat.Flat.of([torch.zeros(shape) for shape in shapes])
    whole = torch.zeros(plan.length, dtype=dtype)
    found = plan.cut(whole)
    assert [tuple(t.shape) for t in found] == shapes
    for number, tensor in enumerate(found, start=1):
        assert tensor.is_contiguous()
        tensor += number
    assert all((t == number).all() for number, t in enumerate(found, start=1))
    assert plan.starts == tuple(t.storage_offset() for t in found)
    assert all(start * dtype.itemsize % 16 == 0 for start in plan.starts)


def test_lists_are_taken_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "serves", lambda index: True)
    first, second = [torch.zeros(2, 3), torch.zeros(4)], [torch.zeros(6).half()] * 2
    assert not fast.ready_lists(first, second), "on the CPU"
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    assert fast.ready_lists(first, second)
    assert not fast.ready_lists(first, [torch.zeros(6).half(), torch.zeros(6)])
    assert not fast.ready_lists(first, [torch.zeros(6).double()] * 2)
    assert not fast.ready_lists([first[0].T, first[1]], second)
    weights = [t.clone().requires_grad_() for t in first]
    assert not fast.ready_lists(weights, second)
    with torch.no_grad():
        assert fast.ready_lists(weights, second)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: tensor.ndim)
    assert not fast.ready_lists(first, second), "on two devices"
