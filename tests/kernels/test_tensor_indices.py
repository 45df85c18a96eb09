"""Indexed reads and writes: what the table of rows cannot say."""

import pytest
import torch

from onnxtrain.kernels.tensor.gather import (
    gather,
    gather_elements,
    gather_elements_grad,
    gather_grad,
    shrunken_gather,
)
from onnxtrain.kernels.tensor.gather_nd import gather_nd, gather_nd_grad
from onnxtrain.kernels.tensor.scatter import scatter_elements, scatter_nd
from onnxtrain.kernels.tensor.slice import slice_grad
from onnxtrain.kernels.tensor.unpad import pad_and_unflatten


def test_gather_grad_rounds_sixteen_bit_sums_once(device: str) -> None:
    dy = torch.tensor([2048.0, 1, 1, 1], dtype=torch.float16, device=device)
    dx = gather_grad([1], torch.zeros(4, dtype=torch.int64, device=device), dy)
    # One addition after the other in float16 would stay at 2048.
    assert dx.tolist() == [2052.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scattered_sums_round_once(dtype: torch.dtype, device: str) -> None:
    ones = torch.ones(4000, dtype=dtype, device=device)
    zeros = torch.zeros(4000, dtype=torch.int64, device=device)
    start = torch.zeros(1, dtype=dtype, device=device)
    expected = torch.tensor([4000.0]).to(dtype).tolist()
    for ordered in (False, True):
        sums = [
            gather_elements_grad(ones, [1], zeros, deterministic=ordered),
            gather_nd_grad([1], zeros[:, None], ones, deterministic=ordered),
            scatter_elements(start, zeros, ones, reduction="add", deterministic=ordered),
            scatter_nd(start, zeros[:, None], ones, reduction="add", deterministic=ordered),
        ]
        assert [value.tolist() for value in sums] == [expected] * 4


def test_both_names_of_a_row_add_up(device: str) -> None:
    indices = torch.tensor([[0, 2], [2, -4]], device=device)
    dy = torch.tensor([[[1.0, 2], [3, 4]], [[5, 6], [7, 8]]], device=device)
    dx = gather_grad([4, 2], indices, dy)
    assert dx.tolist() == [[8, 10], [0, 0], [8, 10], [0, 0]]


def test_gather_elements_grad_example(device: str) -> None:
    dy = torch.tensor([[1.0, 2], [3, 4], [5, 6]], device=device)
    indices = torch.tensor([[0, -1], [0, 1], [-2, 0]], device=device)
    dx = gather_elements_grad(dy, [2, 3], indices, deterministic=False)
    assert dx.tolist() == [[9, 6, 0], [0, 6, 0]]


def test_gather_nd_grad_examples(device: str) -> None:
    indices = torch.tensor([[0, 1], [1, -1], [0, 1]], device=device)
    update = torch.tensor([1.0, 2, 4], device=device)
    dx = gather_nd_grad([2, 3], indices, update, deterministic=False)
    assert dx.tolist() == [[0, 5, 0], [0, 0, 2]]
    empty = torch.zeros(2, 0, dtype=torch.int64, device=device)
    update = torch.arange(12.0, device=device).reshape(2, 2, 3)
    whole = gather_nd_grad([2, 3], empty, update, deterministic=False)
    assert whole.tolist() == [[6, 8, 10], [12, 14, 16]]


def test_slice_grad_examples() -> None:
    dy = torch.tensor([5.0, 7, 9])
    assert slice_grad(dy, [7], [-6], [6], [0], [2]).tolist() == [0, 5, 0, 7, 0, 9, 0]
    dy = torch.tensor([1.0, 2])
    assert slice_grad(dy, [5], [3], [2**63 - 1], [0], [-2]).tolist() == [0, 2, 0, 1, 0]


def test_rows_of_the_same_index_add_up(device: str) -> None:
    rows = torch.tensor([[1.0, 2], [3, 4]], device=device)
    padded = pad_and_unflatten(rows, torch.tensor([2, 2], device=device), [2, 2])
    assert padded.tolist() == [[[0, 0], [0, 0]], [[4, 6], [0, 0]]]


@pytest.mark.gpu
def test_an_index_out_of_range_touches_nothing_else_on_a_gpu() -> None:
    """The device does not fail, and what is in range is right."""
    data = torch.arange(8.0, device="cuda").reshape(4, 2)
    wild = torch.tensor([1, 10**9, -(10**9)], device="cuda")
    assert gather(data, wild)[0].tolist() == [2, 3]
    assert gather_nd(data, wild[:, None])[0].tolist() == [2, 3]
    assert gather_elements(data, wild[:, None])[0].tolist() == [2]
    assert shrunken_gather(data, wild).tolist() == [[2, 3], [0, 0], [0, 0]]
    ones = torch.ones(3, 1, device="cuda")
    for ordered in (False, True):
        dx = gather_elements_grad(ones, [4, 2], wild[:, None], deterministic=ordered)
        assert dx.tolist() == [[0, 0], [1, 0], [0, 0], [0, 0]]
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_ordered_sums_are_equal_bit_by_bit(dtype: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    dy = torch.randn(20000, 8, generator=generator, device="cuda").to(dtype)
    rows = torch.randint(0, 50, (20000,), generator=generator, device="cuda")
    elements = rows[:, None].expand_as(dy)
    zeros = torch.zeros(50, 8, device="cuda", dtype=dtype)

    def sums() -> list[torch.Tensor]:
        return [
            gather_grad([50, 8], rows, dy),
            gather_nd_grad([50, 8], rows[:, None], dy, deterministic=True),
            gather_elements_grad(dy, [50, 8], elements, deterministic=True),
            scatter_elements(zeros, elements, dy, reduction="add", deterministic=True),
            scatter_nd(zeros, rows[:, None], dy, reduction="add", deterministic=True),
        ]

    first = sums()
    for _ in range(5):
        assert all(map(torch.equal, first, sums()))
