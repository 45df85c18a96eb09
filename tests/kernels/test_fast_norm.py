"""Layer and root-mean-square normalization by Triton, beside torch."""

import pytest
import torch
from torch import Tensor

from kernels.fast import ROUNDINGS, aten, drawn, module, near, on_devices


def norm_sizes(device: str) -> list[tuple[int, int]]:
    larger = [(300, 768), (3, 5000)] if device == "cuda" else []
    return [(37, 100), (1, 3), (300, 3), (90, 33), (11, 520), (5, 256), *larger]


@on_devices
def test_layer_normalization_gradient(device: str, dtype: str) -> None:
    for rows, columns in norm_sizes(device):
        x = drawn(rows, columns, device=device, dtype=dtype) * 2 + 1
        dy = drawn(rows, columns, device=device, dtype=dtype)
        w = drawn(columns, device=device, dtype=dtype)

        def native(
            kind: torch.dtype, dy: Tensor = dy, x: Tensor = x, w: Tensor = w
        ) -> list[Tensor]:
            a, b, c = (t.to(kind) for t in (dy, x, w))
            _, mean, inverse = torch.native_layer_norm(b, c.shape, c, c, 1e-5)
            return aten.native_layer_norm_backward(a, b, c.shape, mean, inverse, c, c, [True] * 3)

        _, mean, inverse = torch.native_layer_norm(x.double(), [columns], None, None, 1e-5)
        statistics = mean.float(), inverse.float()
        dx, sums = module("norm_grad").norm_grad(dy, x, w, *statistics)
        theirs, true = native(torch.float32), native(torch.float64)
        for ours, other, exact in zip((dx, *sums), theirs, true, strict=True):
            near(ours, other.to(x.dtype), exact)
        added, _ = module("norm_grad").norm_grad(dy, x, w, *statistics, x)
        near(added, (theirs[0] + x.float()).to(x.dtype), true[0] + x.double())


@on_devices
def test_layer_normalization_gradient_far_from_zero(device: str, dtype: str) -> None:
    x = (drawn(64, 100, device=device, dtype="float32") + 100).to(getattr(torch, dtype))
    dy = drawn(64, 100, device=device, dtype=dtype)
    w = drawn(100, device=device, dtype=dtype)
    mean = x.float().mean(1, keepdim=True)
    inverse = 1 / x.float().std(1, keepdim=True)
    dx, (dw, db) = module("norm_grad").norm_grad(dy, x, w, mean, inverse)
    normal = (x.double() - mean.double()) * inverse.double()
    inner = dy.double() * w.double()
    along, away = (inner * normal).mean(1, keepdim=True), inner.mean(1, keepdim=True)
    truths = (
        (inner - along * normal - away) * inverse.double(),
        (dy.double() * normal).sum(0),
        dy.double().sum(0),
    )
    for ours, true in zip((dx, dw, db), truths, strict=True):
        error = (ours.double() - true).norm() / true.norm()
        assert error <= ROUNDINGS + torch.finfo(ours.dtype).eps / 2


@on_devices
@pytest.mark.parametrize("few", [1 << 20, 0])
def test_layer_normalization_of_a_residual_sum(
    device: str, dtype: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module("norm"), "FEW", few)
    for rows, columns in norm_sizes(device):
        x = drawn(rows, columns, device=device, dtype=dtype) * 2 + 1
        skip = drawn(rows, columns, device=device, dtype=dtype)
        w = drawn(columns, device=device, dtype=dtype)
        plain = module("norm").normalize(x, w, w, 1e-5, centred=True)
        exact = torch.native_layer_norm(x.double(), [columns], *[w.double()] * 2, 1e-5)
        theirs = torch.native_layer_norm(x.float(), [columns], *[w.float()] * 2, 1e-5)
        near(plain.y, theirs[0].to(x.dtype), exact[0])
        near(plain.mean, theirs[1][:, 0], exact[1][:, 0])
        near(plain.inverse, theirs[2][:, 0], exact[2][:, 0])
        summed = module("norm").normalize(x, w, w, 1e-5, centred=True, skip=skip, extra=w)
        exact = x.double() + skip.double() + w.double()
        near(summed.total, exact.to(x.dtype), exact)
        exact, theirs = (
            torch.native_layer_norm(t, [columns], *[w.to(t.dtype)] * 2, 1e-5)[0]
            for t in (exact, exact.float())
        )
        near(summed.y, theirs.to(x.dtype), exact)


@on_devices
@pytest.mark.parametrize("few", [1 << 20, 0])
def test_root_mean_square_normalization(
    device: str, dtype: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module("norm"), "FEW", few)
    for rows, columns in norm_sizes(device):
        x, dy = (drawn(rows, columns + i, device=device, dtype=dtype)[:, i:] for i in (0, 1))
        dy = dy.contiguous()
        w = drawn(columns, device=device, dtype=dtype)

        def passes(
            kind: torch.dtype, x: Tensor = x, w: Tensor = w, dy: Tensor = dy
        ) -> tuple[Tensor, ...]:
            a, b = (t.to(kind, copy=True).requires_grad_() for t in (x, w))
            y = torch.nn.functional.rms_norm(a, b.shape, b, 1e-5)
            return (y.detach(), *torch.autograd.grad(y, [a, b], dy.to(kind)))

        found = module("norm").normalize(x, w, None, 1e-5, centred=False)
        dx, sums = module("norm_grad").norm_grad(dy, x, w, None, found.inverse)
        theirs, true = passes(torch.float32), passes(torch.float64)
        for ours, other, exact in zip((found.y, dx, sums[0]), theirs, true, strict=True):
            near(ours, other.to(x.dtype), exact)


@on_devices
@pytest.mark.parametrize("centred", [True, False])
def test_wide_rows_far_from_zero_are_normalized(device: str, dtype: str, centred: bool) -> None:
    far = 100
    for columns in (2049, 4100):
        x = drawn(3, columns, device=device, dtype=dtype) + far
        w, b = (drawn(columns, device=device, dtype=dtype) for _ in range(2))
        found = module("norm").normalize(x, w, b if centred else None, 1e-5, centred=centred)
        wide, weight, shift = (t.double() for t in (x, w, b))
        middle = wide.mean(1, keepdim=True) if centred else 0
        inverse = ((wide - middle).square().mean(1, keepdim=True) + 1e-5).rsqrt()
        torch.testing.assert_close(found.inverse.double(), inverse[:, 0], rtol=5e-7, atol=0)
        expected = (wide - middle) * inverse * weight + (shift if centred else 0)
        # a mean that is off by its last bits moves the whole row
        bits = 4 * far * 2**-24 * weight.abs().max().item()
        near_enough = {"rtol": 2 * torch.finfo(x.dtype).eps, "atol": bits}
        torch.testing.assert_close(found.y.double(), expected, **near_enough)
