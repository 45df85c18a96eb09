"""Optimizers over several steps, what they overwrite and what they refuse."""

import pytest
import torch

from onnxtrain.kernels.optimizer.lamb import lamb_optimizer
from onnxtrain.kernels.optimizer.parameter import adam_optimizer, sgd_optimizer
from onnxtrain.kernels.optimizer.preview import adam, momentum
from onnxtrain.kernels.optimizer.sequence import (
    adam_w_optimizer,
    inplace_clip_grad_norm,
    sgd_optimizer_v2,
)

SHAPES = [(3, 4), (5,), (2, 2, 2)]


def _lists(count: int, dtype: torch.dtype = torch.float32) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [[torch.randn(s, generator=generator).to(dtype) for s in SHAPES] for _ in range(count)]


def test_ten_steps_are_those_of_torch() -> None:
    [weights] = _lists(1)
    moments = [[torch.zeros_like(w) for w in weights] for _ in range(2)]
    theirs = [w.clone().requires_grad_() for w in weights]
    optimizer = torch.optim.AdamW(theirs, lr=0.05, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
    for step in range(1, 11):
        gradients = [torch.sin(w * step) for w in weights]
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        adam_w_optimizer(0.05, step, weights, gradients, *moments, beta=0.99, weight_decay=0.1)
    torch.testing.assert_close(weights, [w.detach() for w in theirs])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_the_given_tensors_are_overwritten(dtype: torch.dtype) -> None:
    weights, gradients, first, second = _lists(4, dtype)
    second = [v.abs() for v in second]
    old = [[t.clone() for t in items] for items in (weights, gradients, first, second)]
    outputs = adam_w_optimizer([0.1], [2], weights, gradients, first, second, adam_mode=1)
    for ours, given in zip(outputs[1:], (weights, first, second), strict=True):
        assert all(a is b for a, b in zip(ours, given, strict=True))
    for new, before in zip((weights, first, second), (old[0], old[2], old[3]), strict=True):
        assert not any(torch.equal(a, b) for a, b in zip(new, before, strict=True))
    assert all(map(torch.equal, gradients, old[1]))


def test_without_signal_nothing_changes() -> None:
    weights, gradients, first, second = _lists(4)
    old = [w.clone() for w in weights]
    flag, *_ = adam_w_optimizer(0.1, [[2]], weights, gradients, first, second, [False])
    assert flag.tolist() == [[False]] and all(map(torch.equal, weights, old))
    flag, _ = sgd_optimizer_v2([0.1], weights, gradients, False)
    assert flag.tolist() == [False] and all(map(torch.equal, weights, old))


@pytest.mark.parametrize("mode", [0, 1])
def test_step_zero_makes_nan_of_the_weights_only(mode: int) -> None:
    weights, gradients, first, second = _lists(4)
    second = [v.abs() for v in second]
    adam_w_optimizer(0.1, 0, weights, gradients, first, second, adam_mode=mode)
    assert all(w.isnan().all() for w in weights)
    assert all(m.isfinite().all() for m in (*first, *second))


def test_gradients_need_not_be_contiguous() -> None:
    weights, gradients, first, second = _lists(4)
    second = [v.abs() for v in second]
    other = [[t.clone() for t in items] for items in (weights, first, second)]
    strided = [g.transpose(0, -1).contiguous().transpose(0, -1) for g in gradients]
    adam_w_optimizer(0.1, 1, weights, gradients, first, second)
    adam_w_optimizer(0.1, 1, other[0], strided, *other[1:])
    assert all(map(torch.equal, weights, other[0]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adam_mode": 2}, "adam_mode is invalid"),
        ({"correct_bias": 2}, "correct_bias is invalid"),
        ({"correct_bias": 0}, "correct_bias should be 1 for adam_mode = 0"),
    ],
)
def test_modes_that_do_not_exist_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        adam_w_optimizer(0.1, 1, *_lists(4), **options)


def test_lists_that_do_not_fit_are_refused() -> None:
    weights, gradients = _lists(2)
    with pytest.raises(ValueError, match=r"invalid count of tensors in Seq<Tensor>"):
        sgd_optimizer_v2(0.1, [], [])
    with pytest.raises(ValueError, match="number of weights and gradients mismatch: 3, 2"):
        sgd_optimizer_v2(0.1, weights, gradients[:2])
    with pytest.raises(ValueError, match="shape of weight and gradient mismatch, weight index:0"):
        sgd_optimizer_v2(0.1, weights, gradients[::-1])


def test_clipping_changes_the_given_tensors() -> None:
    gradients = [torch.tensor([3.0]), torch.tensor([4.0]), torch.zeros(0)]
    outputs = inplace_clip_grad_norm(gradients)
    assert all(a is b for a, b in zip(outputs, gradients, strict=True))
    torch.testing.assert_close(gradients[:2], [torch.tensor([0.6]), torch.tensor([0.8])])
    assert inplace_clip_grad_norm([]) == []
    with pytest.raises(ValueError, match="norm type 'inf' is not supported"):
        inplace_clip_grad_norm(gradients, norm_type="inf")


def test_clipping_half_gradients_does_not_overflow() -> None:
    gradients = [torch.full((4,), 30000.0, dtype=torch.float16)]
    inplace_clip_grad_norm(gradients, max_norm=2.0)
    torch.testing.assert_close(gradients[0], torch.full((4,), 1.0, dtype=torch.float16))


def _adam(**options: object) -> tuple[list[torch.Tensor], tuple[torch.Tensor | None, ...]]:
    generator = torch.Generator().manual_seed(3)
    w, g, m, v = (torch.rand(4, generator=generator) for _ in range(4))
    inputs = [torch.tensor(0.1), torch.tensor([1]), w, g, m, v]
    return inputs, adam_optimizer(*inputs, update=True, **options)


def test_bound_parameters_are_overwritten() -> None:
    inputs, outputs = _adam(wanted=(False,) * 4)
    for output, given in ((0, 1), (1, 4), (2, 5), (3, 2)):
        assert outputs[output] is inputs[given]
    assert inputs[1].tolist() == [2]


@pytest.mark.parametrize("wanted", [(True, True, True), (True, True, True, False, True)])
def test_weights_stay_if_only_the_step_is_asked_for(wanted: tuple[bool, ...]) -> None:
    inputs, outputs = _adam(wanted=wanted)
    assert outputs[3] is not inputs[2] and outputs[1] is inputs[4]
    _, told = _adam(wanted=(True,) * 5)
    torch.testing.assert_close(inputs[2] + told[4], outputs[3])
    if len(wanted) > 4:
        torch.testing.assert_close(outputs[4], told[4], rtol=0, atol=0)
    w, g = torch.ones(2), torch.ones(2)
    _, delta = sgd_optimizer(torch.tensor(0.5), w, g, wanted=(False, True), update=True)
    assert w.tolist() == [1.0, 1.0] and delta.tolist() == [-0.5, -0.5]
    sgd_optimizer(torch.tensor(0.5), w, g, wanted=(False, False), update=True)
    assert w.tolist() == [0.5, 0.5]


def test_hyper_parameters_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="max_norm_clip must not be 0"):
        _adam(wanted=(True,) * 4, max_norm_clip=0.0)
    with pytest.raises(ValueError, match="weight_decay_mode is 2"):
        _adam(wanted=(True,) * 4, weight_decay_mode=2)
    with pytest.raises(ValueError, match="do_bias_correction is -1"):
        _adam(wanted=(True,) * 4, do_bias_correction=-1)
    with pytest.raises(ValueError, match="must be the same"):
        sgd_optimizer(torch.tensor(0.5), torch.ones(2), torch.ones(1), wanted=(True,))


def test_infinite_norms_clip_to_zero_and_nan_flows_on() -> None:
    g = torch.tensor([1.0, 2.0])
    arguments = [torch.tensor(0.1), torch.tensor(1), torch.ones(2), g, torch.ones(2), torch.ones(2)]
    for norm, moment in ((float("inf"), 0.5), (float("nan"), 1.0)):
        outputs = adam_optimizer(
            *arguments, None, None, torch.tensor(norm), alpha=0.5, wanted=(True,) * 5
        )
        assert outputs[1].tolist()[0] == moment


def test_lamb_refuses_incomplete_groups() -> None:
    w = torch.ones(2)
    lists = {"alpha": [0.9], "beta": [0.9], "lambda_": [0.0], "epsilon": [1e-6], "wanted": (True,)}
    with pytest.raises(ValueError, match="groups of 5 inputs, there are 3"):
        lamb_optimizer(None, None, None, w[:1], None, w, w, w, **lists)
    with pytest.raises(ValueError, match="group 0 lacks"):
        lamb_optimizer(None, None, None, w[:1], None, w, None, w, w, None, **lists)
    with pytest.raises(ValueError, match="alpha has 1024 values for 1 parameters"):
        lamb_optimizer(None, None, None, w[:1], None, w, w, w, w, None, wanted=(True,))
    with pytest.raises(ValueError, match="max_norm_clip has 0 values"):
        lamb_optimizer(None, None, None, w[:1], None, w, w, w, w, None, **lists, max_norm_clip=[])


def test_onnx_optimizers_refuse_what_they_do_not_know() -> None:
    one = torch.ones(())
    with pytest.raises(ValueError, match="must be 'nesterov' or 'standard'"):
        momentum(one, one, one, one, one, alpha=0.5, beta=0.5, mode="other", norm_coefficient=0.0)
    with pytest.raises(ValueError, match="5 tensors cannot be split into 4 kinds"):
        adam(one, one, one, one, one, one, one)
