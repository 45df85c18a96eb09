"""Steps over many tensors by Triton, beside torch."""

import functools

import pytest
import torch

from kernels.fast import drawn, module, near, on_devices


@on_devices
def test_norm_and_clipping_of_many_tensors(device: str, dtype: str) -> None:
    items = [drawn(*s, device=device, dtype=dtype) for s in [(5000,), (3, 7), (70, 100), (1,)]]
    true = torch.cat([t.double().flatten() for t in items]).norm()
    many = module("many")
    torch.testing.assert_close(many.norm(items), true.float(), rtol=1e-6, atol=1e-6)
    kept = [t.clone() for t in items]
    many.clip(items, 2 * float(true))
    assert all(map(torch.equal, items, kept))
    many.clip(items, 1.0)
    for ours, before in zip(items, kept, strict=True):
        exact = before.double() / true
        near(ours, exact.to(before.dtype), exact)


@on_devices
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("recorded", [False, True])
def test_adam_w_over_many_tensors(device: str, dtype: str, last: bool, recorded: bool) -> None:
    many = module("many")
    shapes = [(5000,), (3, 7), (0,), (70, 100)]
    weights = [drawn(*s, device=device, dtype="float32") for s in shapes]
    gradients, copies = ([drawn(*s, device=device, dtype=dtype) for s in shapes] for _ in range(2))
    gradients[1] = gradients[1].float()
    moments = [[torch.full(s, x, device=device) for s in shapes] for x in (0.1, 0.2)]
    expected = []
    first, root = 1 - 0.9**3, (1 - 0.99**3) ** 0.5
    for w, g in zip(weights, gradients, strict=True):
        w, g = w.double(), g.double() * 0.5
        m, v = 0.9 * 0.1 + 0.1 * g, 0.99 * 0.2 + 0.01 * g * g
        if last:
            w = (w - 0.01 * root / first * m / (v.sqrt() + 1e-3)) * (1 - 0.01 * 0.1)
        else:
            w = w * (1 - 0.01 * 0.1) - 0.01 * m / (first * (v.sqrt() / root + 1e-3))
        expected.append((w, m, v))
    numbers = {"lr": 0.01, "step": 3}
    if recorded:
        numbers = {name: torch.tensor([value], device=device) for name, value in numbers.items()}
    step = functools.partial(
        many.adamw,
        weights,
        gradients,
        *moments,
        **numbers,
        betas=(0.9, 0.99),
        epsilon=1e-3,
        weight_decay=0.1,
        decay_last=last,
        copies=copies,
        factor=torch.tensor(0.5, device=device),
    )
    kept = [w.clone() for w in weights]
    step(skip=torch.tensor(True, device=device))
    assert all(map(torch.equal, weights, kept))
    step(skip=torch.tensor(False, device=device))
    assert all(torch.equal(c, w.to(c.dtype)) for c, w in zip(copies, weights, strict=True))
    for found, exact in zip(zip(weights, *moments, strict=True), expected, strict=True):
        for ours, true in zip(found, exact, strict=True):
            if true.numel():
                near(ours, true.float().to(ours.dtype), true)


@on_devices
def test_gradient_descent_and_checks_over_many_tensors(device: str, dtype: str) -> None:
    many = module("many")
    for rate in (0.1, torch.tensor(0.1, device=device)):
        weights = [drawn(*s, device=device, dtype="float32") for s in [(3000,), (3, 7)]]
        gradients = [drawn(*w.shape, device=device, dtype=dtype) * 2 for w in weights]
        copies = [torch.empty_like(g) for g in gradients]
        exact = [w.double() - 0.1 * g.double() for w, g in zip(weights, gradients, strict=True)]
        many.sgd(weights, gradients, lr=rate, copies=copies)
        for ours, copy, true in zip(weights, copies, exact, strict=True):
            near(ours, true.float(), true)
            assert torch.equal(copy, ours.to(copy.dtype))
    for value, seen in ((1.0, (True, True, True)), (float("inf"), (False, False, True))):
        gradients[0][1500] = value
        kinds = ({}, {"nan": False}, {"infinite": False})
        assert tuple(bool(many.all_finite(gradients, **kind)) for kind in kinds) == seen
