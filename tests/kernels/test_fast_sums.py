"""Triton kernels that write gradients with their sums, and rows into a gradient that is there."""

from __future__ import annotations

import pytest
import torch

from kernels.fast import in_two_types, module


def drawn(*shape: int, device: str, dtype: str) -> torch.Tensor:
    return torch.randn(shape).to(device, getattr(torch, dtype))


def close_sums(found: torch.Tensor, values: torch.Tensor) -> None:
    true = values.double().reshape(-1, values.shape[-1]).sum(0)
    width = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[found.dtype]
    torch.testing.assert_close(found.double(), true, rtol=width, atol=width)


@in_two_types
@pytest.mark.parametrize(("count", "shape"), [(2, (3, 37, 40)), (3, (5, 200)), (4, (130, 16))])
def test_side_by_side(device: str, dtype: str, count: int, shape: tuple[int, ...]) -> None:
    parts = [drawn(*shape, device=device, dtype=dtype) for _ in range(count)]
    assert module("sums").takes(parts)
    out, sums = module("sums").side_by_side(parts)
    assert torch.equal(out, torch.cat(parts, -1))
    close_sums(sums, out)


@in_two_types
@pytest.mark.parametrize("batch", [5, 4])
def test_dropout(device: str, dtype: str, batch: int) -> None:
    dy = drawn(batch, 37, 72, device=device, dtype=dtype)
    mask = torch.rand(dy.shape).to(device) < 0.75
    dx, sums = module("sums").drop_grad(dy, mask, 0.25)
    torch.testing.assert_close(dx, torch.where(mask, dy / 0.75, 0.0).to(dy.dtype))
    assert torch.equal(dx == 0, ~mask | (dy == 0))
    close_sums(sums, dx)


@in_two_types
def test_strips_without_a_rest(device: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many rows are taken as one that strips of these are whole."""
    columns = module("columns")
    monkeypatch.setattr(columns, "MANY_ROUNDS", 1)
    monkeypatch.setattr(columns, "MANY_PARTS", 1)
    x = drawn(8 * 65, 72, device=device, dtype=dtype)
    plan = columns.LAUNCHES[x.dtype.itemsize]
    monkeypatch.setattr(columns, "FEW", 0)
    assert columns.in_whole_strips(plan, 8 * 65, 72, x.dtype.itemsize, x.device) == 8
    close_sums(columns.column_sums(x, 72), x)
    assert columns.in_whole_strips(plan, 8 * 65 + 2, 72, x.dtype.itemsize, x.device) == 2
    assert columns.in_whole_strips(plan, 8 * 65, 72 + 1, x.dtype.itemsize, x.device) == 1


@in_two_types
@pytest.mark.parametrize("shortcut", [False, True])
def test_gradient_of_a_normalization(device: str, dtype: str, shortcut: bool) -> None:
    x, dy, residual = (drawn(45, 72, device=device, dtype=dtype) for _ in range(3))
    scale = drawn(72, device=device, dtype=dtype)
    mean = x.float().mean(1)
    inverse = x.float().var(1, correction=0).add(1e-5).rsqrt()
    given = (dy, x, scale, mean, inverse, residual if shortcut else None)
    dx, sums = module("norm_grad").norm_grad(*given)
    same, more = module("norm_grad").norm_grad(*given, summed=True)
    assert torch.equal(dx, same) and torch.equal(sums, more[:2])
    close_sums(more[2], dx)


@in_two_types
@pytest.mark.parametrize("rows", [3, 50])
def test_rows_are_added_to_what_is_there(device: str, dtype: str, rows: int) -> None:
    indices = torch.randint(-rows, rows, (150,)).to(device)
    values = drawn(150, 40, device=device, dtype=dtype)
    base = drawn(rows, 40, device=device, dtype=dtype)
    true = base.double().index_add(0, indices % rows, values.double())
    out = module("gather.segments").sum_rows(indices, values, rows, base)
    assert out is base
    width = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}[dtype]
    torch.testing.assert_close(base.double(), true, rtol=width, atol=width)


@in_two_types
def test_a_shortcut_is_added_to_a_normalization(device: str, dtype: str) -> None:
    images = [
        drawn(3, 20, 6, 7, device=device, dtype=dtype).contiguous(memory_format=torch.channels_last)
        for _ in range(2)
    ]
    x, residual = images
    scale, shift = (drawn(20, device=device, dtype="float32") for _ in range(2))
    y, mean, var, inverse = module("batch_norm").train(x, scale, shift, 1e-5)
    found = module("batch_norm").train(x, scale, shift, 1e-5, relu=True, residual=residual)
    for one, other in zip(found[1:], (mean, var, inverse), strict=True):
        assert torch.equal(one, other)
    sides = (1, -1, 1, 1)
    exact = (x.double() - mean.double().view(sides)) * inverse.double().view(sides)
    exact = exact * scale.double().view(sides) + shift.double().view(sides) + residual.double()
    rounding = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[y.dtype]
    torch.testing.assert_close(found[0].double(), exact.relu(), rtol=rounding, atol=rounding)
