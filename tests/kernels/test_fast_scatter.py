"""Values added at indices in shared memory: as whole numbers, with the same sums in any order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.fast import in_two_types, module

SHAPES = [(3, 30, 100), (2, 150, 700), (2, 1, 65)]
"""Rows, places and values of a row, which has one part or a few."""
LARGE = [(300, 4096, 4096), (40, 5000, 1001), (9, 60_000, 3000), (5, 100, 16_384), (70, 9, 70)]


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short parts where kernels are interpreted, so that rows have several."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(module("scatter"), "PART", 64)


def shapes(device: str) -> list[tuple[int, int, int]]:
    return SHAPES + LARGE * (device == "cuda")


def drawn(rows: int, size: int, picks: int) -> tuple[Tensor, Tensor]:
    """Values, and indices of which some are out of range."""
    return torch.randn(rows, picks), torch.randint(-size - 2, size + 2, (rows, picks))


def added(values: Tensor, index: Tensor, size: int) -> Tensor:
    sums: Tensor = module("scatter").add_at_last(values, index, len(values), size, repeatable=True)
    assert sums.dtype == values.dtype and sums.shape == (len(values), size)
    return sums


def truth(values: Tensor, index: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Sums in float64, and sums of absolute values."""
    inside = (index >= -size) & (index < size)
    wide = torch.where(inside, values.double(), 0.0)
    zeros = wide.new_zeros(len(values), size)
    place = torch.where(inside, index % size, 0).long()
    return zeros.scatter_add(1, place, wide), zeros.scatter_add(1, place, wide.abs())


def assert_rounded_once(ours: Tensor, true: Tensor, weight: Tensor) -> None:
    """Sums are the nearest numbers of their type, but for 2^-30 of what was added."""
    half = torch.finfo(ours.dtype).eps / 2 + 2.0**-24 * (ours.dtype != torch.float32)
    smallest = torch.finfo(ours.dtype).smallest_normal * half
    error = (ours.double() - true).abs() - half * true.abs() - 2.0**-30 * weight - smallest
    assert error.max() <= 0


@in_two_types
@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_sums_are_rounded_once(device: str, dtype: str, kind: torch.dtype) -> None:
    for rows, size, picks in shapes(device):
        values, index = (t.to(device) for t in drawn(rows, size, picks))
        values = values.to(getattr(torch, dtype))
        assert module("scatter").repeats(picks, size)
        assert_rounded_once(added(values, index.to(kind), size), *truth(values, index, size))


@in_two_types
def test_sums_of_large_and_small_values(device: str, dtype: str) -> None:
    """Small values are not lost beside large ones of other places, nor are many at one place."""
    for rows, size, picks in shapes(device):
        values, index = drawn(rows, size, picks)
        values = values * 10.0 ** torch.randint(-6, 3, values.shape)
        index[:, ::2] = 0
        values, index = values.to(device, getattr(torch, dtype)), index.to(device)
        assert_rounded_once(added(values, index, size), *truth(values, index, size))


@in_two_types
def test_any_order_gives_the_same_bits(device: str, dtype: str) -> None:
    for rows, size, picks in shapes(device):
        values, index = (t.to(device) for t in drawn(rows, size, picks))
        values, order = values.to(getattr(torch, dtype)), torch.randperm(picks, device=device)
        moved = values[:, order].contiguous(), index[:, order].contiguous()
        assert torch.equal(added(values, index, size), added(*moved, size))


@in_two_types
@pytest.mark.parametrize("picks", [1, 5, 64])
def test_few_values_of_rows_that_several_programs_clear(
    device: str, dtype: str, picks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of a row end in it and behind it; a place may have many values, and none be there."""
    monkeypatch.setattr(module("scatter"), "CLEARED", 64)
    monkeypatch.setattr(module("scatter"), "PART", 16)
    for rows, size in [(3, 70), (1, 64), (5, 33), (2, 1)]:
        values, index = (t.to(device) for t in drawn(rows, size, picks))
        values, index[0] = values.to(getattr(torch, dtype)), -1
        ours, (true, weight) = added(values, index, size), truth(values, index, size)
        step = torch.finfo(ours.dtype).eps
        assert ((ours.double() - true).abs() <= step * true.abs() + 1e-6 * weight).all()


@pytest.mark.parametrize("power", [-90, 100])
@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_sums_grow_with_their_values(place: str, power: int) -> None:
    values, index = (t.to(place) for t in drawn(2, 50, 200))
    factor = 2.0**power
    assert torch.equal(added(values * factor, index, 50), added(values, index, 50) * factor)


@in_two_types
def test_infinite_values_stay_where_they_are_added(device: str, dtype: str) -> None:
    values = torch.ones(1, 80).to(device, getattr(torch, dtype))
    index = (torch.arange(80, device=device) % 6)[None].contiguous()
    inf, nan = torch.inf, torch.nan
    values[0, :4] = torch.tensor([inf, -inf, nan, inf])
    values[0, 9] = -inf
    ours = added(values, index, 7)
    expected = values.new_tensor([[inf, -inf, nan, nan, 13, 13, 0]])
    torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)


@in_two_types
def test_the_largest_sums_and_those_beyond(device: str, dtype: str) -> None:
    largest = torch.finfo(getattr(torch, dtype)).max
    values = torch.zeros(1, 90, device=device, dtype=getattr(torch, dtype))
    values[0, :6] = torch.tensor([largest, -largest, largest, largest, -largest, -largest])
    index = torch.full((1, 90), 9, device=device)
    index[0, :6] = torch.tensor([0, 0, 1, 1, 2, 2])
    ours = added(values, index, 10)
    assert ours[0, :3].tolist() == [0.0, torch.inf, -torch.inf] and not ours[0, 3:].any()


@in_two_types
def test_indices_far_out_of_range_add_nothing(device: str, dtype: str) -> None:
    """Also those that would be in range if their upper bits were left out."""
    index = torch.full((1, 100), 5, device=device)
    index[0, 1:7] = torch.tensor([1 << 32, -(1 << 32), (1 << 40) + 3, 1 << 31, -11, 10])
    ours = added(torch.ones(1, 100, device=device, dtype=getattr(torch, dtype)), index, 10)
    assert ours[0, 5] == 94 and ours.sum() == 94


@in_two_types
@pytest.mark.parametrize("picks", [100, 200, 300])
def test_values_of_long_rows(device: str, dtype: str, picks: int) -> None:
    """A few meet each other, others have parts or are added one by one if they need not repeat."""
    quick = module("scatter")
    for size in (quick.PART + 3, quick.MOST_PARTS * quick.PART + 3):
        values, index = drawn(2, size, picks)
        index[:, ::3] = 7
        # whole numbers, whose sums are exact in any order
        values, index = (4 * values).round().to(device, getattr(torch, dtype)), index.to(device)
        true, _ = truth(values, index, size)
        ours = quick.add_at_last(values, index, 2, size)
        assert torch.equal(ours, true.to(ours.dtype))
        if quick.repeats(picks, size):
            assert torch.equal(added(values, index, size), added(values, index, size))


def test_sums_that_can_repeat() -> None:
    quick = module("scatter")
    limit = quick.MOST_PARTS * quick.PART
    assert quick.repeats(4096, 4096) and quick.repeats(quick.MOST_PICKS, limit)
    assert quick.repeats(64, 1 << 40)
    assert not quick.repeats(quick.MOST_PICKS + 1, 9) and not quick.repeats(300, limit + 1)
