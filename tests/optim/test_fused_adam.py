from __future__ import annotations

import copy

import pytest
import torch

from onnxtrain.optim import AdamWMode, FusedAdam

MODES = list(AdamWMode)


def tensors(dtype=torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 4), (5,), ()]
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def set_grads(params: list[torch.Tensor], step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


def by_formula(params, steps, mode, lr, betas, eps, decay, corrected):
    """The three modes in double."""
    (b1, b2), result = betas, []
    for index, p in enumerate(params):
        w, m, v = p.detach().double(), 0, 0
        for t in range(1, steps + 1):
            copies = [q.detach().clone() for q in params]
            set_grads(copies, t)
            g = copies[index].grad.double()
            c1, c2 = (1 - b1**t, 1 - b2**t) if corrected else (1, 1)
            if mode == AdamWMode.ADAM_L2_REGULARIZATION:
                g = g + decay * w
            if mode == AdamWMode.ADAMW_TORCH:
                w = w - lr * decay * w
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            if mode == AdamWMode.ADAMW_TORCH:
                w = w - lr * m / (c1 * (v.sqrt() / c2**0.5 + eps))
            else:
                w = w - lr * c2**0.5 / c1 * m / (v.sqrt() + eps)
            if mode == AdamWMode.ADAMW_TRANSFORMERS:
                w = w - lr * decay * w
        result.append(w)
    return result


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("mode", MODES)
def test_modes_follow_their_formulas(mode, decay, corrected):
    params = tensors()
    start = [p.detach().clone() for p in params]
    options = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": decay}
    optimizer = FusedAdam(params, bias_correction=corrected, adam_w_mode=mode, **options)
    for step in range(1, 4):
        set_grads(params, step)
        optimizer.step()
    truth = by_formula(start, 3, mode, 0.05, (0.8, 0.95), 1e-3, decay, corrected)
    for p, expected in zip(params, truth, strict=True):
        torch.testing.assert_close(p.detach().double(), expected, rtol=1e-5, atol=1e-6)


def test_the_torch_mode_is_torch():
    params, others = tensors(), tensors()
    options = {"lr": 0.01, "eps": 1e-6, "weight_decay": 0.1}
    ours = FusedAdam(params, adam_w_mode=AdamWMode.ADAMW_TORCH, **options)
    theirs = torch.optim.AdamW(others, **options)
    for step in range(5):
        for group, optimizer in ((params, ours), (others, theirs)):
            set_grads(group, step)
            optimizer.step()
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


def test_half_precision_is_computed_in_single():
    params = tensors(torch.float16)
    start = [p.detach().clone() for p in params]
    optimizer = FusedAdam(params, lr=0.05)
    set_grads(params, 1)
    optimizer.step()
    truth = by_formula(start, 1, AdamWMode.ADAMW_TRANSFORMERS, 0.05, (0.9, 0.999), 1e-6, 0, True)
    for p, expected in zip(params, truth, strict=True):
        assert optimizer.state[p]["exp_avg"].dtype == torch.float16
        torch.testing.assert_close(p.detach(), expected.half(), rtol=1e-3, atol=1e-4)


def test_state_goes_on_in_another_optimizer():
    params = tensors()
    optimizer = FusedAdam(params, lr=0.05)
    set_grads(params, 1)
    optimizer.step()
    others = [p.detach().clone().requires_grad_() for p in params]
    again = FusedAdam(others)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for group, one in ((params, optimizer), (others, again)):
        set_grads(group, 2)
        one.step()
    assert again.param_groups[0]["step"] == 2
    assert all(torch.equal(p, q) for p, q in zip(params, others, strict=True))


def test_parameters_without_gradients_stay_and_steps_are_counted():
    params = tensors()
    optimizer = FusedAdam([{"params": params[:1]}, {"params": params[1:], "lr": 0.5}])
    before = [p.detach().clone() for p in params]
    set_grads(params[1:], 1)
    optimizer.step()
    assert torch.equal(params[0], before[0]) and not torch.equal(params[1], before[1])
    assert [group["step"] for group in optimizer.param_groups] == [1, 1]


def test_closure():
    params = tensors()

    def closure():
        loss = sum((p**2).sum() for p in params)
        loss.backward()
        return loss

    optimizer = FusedAdam(params, lr=0.1)
    first = optimizer.step(closure)
    optimizer.zero_grad()
    assert optimizer.step(closure) < first


@pytest.mark.parametrize(("own", "call", "none"), [(True, False, True), (False, False, False)])
def test_zero_grad(own, call, none):
    params = tensors()
    optimizer = FusedAdam(params, set_grad_none=own)
    set_grads(params, 1)
    optimizer.zero_grad(set_to_none=call)
    assert all((p.grad is None) == none for p in params)
    assert none or not any(p.grad.any() for p in params)


def test_refusals():
    double = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    double.grad = torch.ones(2, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="only support fp16 and fp32"):
        FusedAdam([double]).step()
    sparse = torch.zeros(2, requires_grad=True)
    sparse.grad = torch.ones(2).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        FusedAdam([sparse]).step()
