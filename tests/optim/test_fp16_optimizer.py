from __future__ import annotations

import math

import pytest
import torch

from onnxtrain.optim import FP16_Optimizer, FusedAdam
from onnxtrain.optim.fp16_optimizer import clip_grad_norm_fp32, has_non_finite


def named(module: str, name: str, **members):
    """A class of a package that is not installed."""
    return type(name, (), {"__module__": module, **members})


def parameter(*grad: float) -> torch.Tensor:
    p = torch.zeros(len(grad), requires_grad=True)
    p.grad = torch.tensor(grad, dtype=torch.float32)
    return p


def test_unknown_optimizers_are_left_as_they_are():
    optimizer = FusedAdam([torch.zeros(1, requires_grad=True)])
    with pytest.warns(UserWarning, match="name not found in the registry: onnxtrain.optim"):
        assert FP16_Optimizer(optimizer) is optimizer


def megatron(*groups: list[torch.Tensor]):
    kind = named(
        "megatron.fp16.fp16",
        "FP16_Optimizer",
        _check_overflow=lambda self: None,
        clip_master_grads=lambda self, norm: None,
    )
    optimizer = kind()
    optimizer.fp16_groups, optimizer.fp32_from_fp32_groups = list(groups), [[]]
    optimizer.optimizer = type("Inner", (), {})()
    optimizer.optimizer.param_groups = [{"params": group} for group in groups]
    optimizer.overflow = False
    return FP16_Optimizer(optimizer)


def test_megatron_notes_overflows():
    optimizer = megatron([parameter(1, 2)], [parameter(3.0)])
    optimizer._check_overflow()
    assert optimizer.overflow is False
    optimizer = megatron([parameter(1, math.inf)], [parameter(3.0)])
    optimizer._check_overflow()
    assert optimizer.overflow is True
    assert optimizer.clip_master_grads(1.0) == -1


def test_megatron_clips():
    p = parameter(3, 4)
    optimizer = megatron([p])
    assert optimizer.clip_master_grads(1.0) == pytest.approx(5)
    torch.testing.assert_close(p.grad, torch.tensor([0.6, 0.8]), rtol=1e-5, atol=0)


def test_an_optimizer_without_the_methods_is_left_as_it_is():
    optimizer = named("megatron.fp16.fp16", "FP16_Optimizer")()
    with pytest.warns(UserWarning, match="has no _check_overflow, clip_master_grads"):
        FP16_Optimizer(optimizer)


@pytest.mark.parametrize("wrapped", [False, True])
def test_deepspeed_sees_overflows(wrapped):
    methods = ("has_overflow_serial", "has_overflow_partitioned_grads_serial")
    kind = named(
        "deepspeed.runtime.zero.stage_1_and_2",
        "DeepSpeedZeroOptimizer",
        **dict.fromkeys(methods, lambda *_: None),
    )
    optimizer = kind()
    optimizer.bit16_groups = [0, 1]
    optimizer.averaged_gradients = {0: [torch.ones(2)], 1: [None, torch.tensor([math.nan])]}
    if wrapped:
        outer = named("accelerate.utils.deepspeed", "DeepSpeedOptimizerWrapper")()
        outer.optimizer = optimizer
        assert FP16_Optimizer(outer) is outer
    else:
        FP16_Optimizer(optimizer)
    assert optimizer.has_overflow_partitioned_grads_serial() is True
    assert optimizer.has_overflow_serial([parameter(1), torch.zeros(1)]) is False
    assert optimizer.has_overflow_serial([parameter(1), parameter(math.inf)]) is True


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_non_finite(value):
    half = torch.tensor([60000.0, 1.0], dtype=torch.float16)
    assert not has_non_finite([half, torch.ones(3)])
    assert has_non_finite([half, torch.tensor([1.0, value])])
    assert not has_non_finite([])


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
def test_norms_are_those_of_torch(norm_type):
    params, others = ([parameter(1, -2, 3), parameter(4.0)] for _ in range(2))
    found = clip_grad_norm_fp32([*params, torch.zeros(1)], 2.0, norm_type)
    expected = torch.nn.utils.clip_grad_norm_(others, 2.0, norm_type)
    assert found == pytest.approx(float(expected))
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_small_gradients_are_not_scaled():
    p = parameter(0.3, 0.4)
    assert clip_grad_norm_fp32(p, 1.0) == pytest.approx(0.5)
    assert torch.equal(p.grad, torch.tensor([0.3, 0.4]))
