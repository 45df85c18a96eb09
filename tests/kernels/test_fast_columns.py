"""Sums of columns, Gelu with a bias, and values added at indices by Triton, beside torch."""

import pytest
import torch
from torch import Tensor

from kernels.fast import drawn, module, near, on_devices


@on_devices
@pytest.mark.parametrize("picks", [7, 64, 200])
def test_values_added_at_indices(device: str, dtype: str, picks: int) -> None:
    generator = torch.Generator().manual_seed(picks)
    index = torch.randint(-35, 35, (5, picks), generator=generator).to(device)
    values = drawn(5, picks, device=device, dtype=dtype)
    inside = (index >= -30) & (index < 30)
    true = values.new_zeros(5, 30, dtype=torch.float64)
    true.scatter_add_(1, index % 30, values.double() * inside)
    near(module("scatter").add_at_last(values, index, 5, 30), true.float().to(values.dtype), true)


@on_devices
def test_sums_of_columns(device: str, dtype: str) -> None:
    for shape in [(3, 50, 70), (200, 64), (1, 5), (3, 16, 70), (32, 37), (6, 1000)]:
        x = drawn(*shape, device=device, dtype=dtype)
        axes = list(range(x.ndim - 1))
        ours = module("columns").column_sums(x, shape[-1])
        near(ours, x.sum(axes), x.double().sum(axes))


def test_sums_of_columns_that_are_left_to_torch() -> None:
    """Without wide loads: columns not in groups of 16, and too few rows to make whole groups."""
    takes = module("columns").takes
    found = {shape: takes(*shape) for shape in [(7, 768), (2, 1000), (7, 1000), (32, 37), (8, 37)]}
    assert [shape for shape, taken in found.items() if not taken] == [(7, 1000), (8, 37)]


@on_devices
@pytest.mark.parametrize("form", ["none", "tanh", "quick"])
@pytest.mark.parametrize("rows", [45, 48])
def test_gelu_with_a_bias(device: str, dtype: str, rows: int, form: str) -> None:
    x, dy = (drawn(3, rows, 70 + i, device=device, dtype=dtype)[..., i:] for i in (0, 1))
    dy, bias = dy.contiguous(), drawn(70, device=device, dtype=dtype)

    def passes(kind: torch.dtype) -> tuple[Tensor, Tensor]:
        total = (x.to(kind) + bias.to(kind)).requires_grad_()
        if form == "quick":
            y = total * torch.sigmoid(1.7 * total)
        else:
            y = torch.nn.functional.gelu(total, approximate=form)
        return y.detach(), torch.autograd.grad(y, total, dy.to(kind))[0]

    (plain, plain_dx), (true, true_dx) = passes(torch.float32), passes(torch.float64)
    near(module("pointwise").gelu(x, bias, form, 1.7), plain.to(x.dtype), true)
    near(module("pointwise").gelu_grad(dy, x, bias, form, 1.7), plain_dx.to(x.dtype), true_dx)
    if form != "quick":
        dx, sums = module("columns").gelu_grad_and_sums(dy, x, bias, form)
        near(dx, plain_dx.to(x.dtype), true_dx)
        # what is summed are the stored values
        near(sums, dx.sum((0, 1)), dx.double().sum((0, 1)))
