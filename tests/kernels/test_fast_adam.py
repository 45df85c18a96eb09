"""Adam of one parameter by Triton beside the portable kernel in float64."""

import itertools

import pytest
import torch

from onnxtrain.kernels import fast
from onnxtrain.kernels.optimizer import parameter

pytest.importorskip("triton", reason="Triton is not installed")

PRECISION = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.int64: 0.0}


@pytest.fixture
def on_gpu(device: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device that Triton takes: the CPU where its interpreter stands for a GPU."""
    if device == "cpu":
        monkeypatch.setattr(fast, "ready", lambda *tensors, **options: True)
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    return device


def inputs(narrow: torch.dtype | None) -> list[torch.Tensor | None]:
    weights = torch.randn(1500)
    mixed = None if narrow is None else weights.to(narrow)
    gradient = torch.randn(1500).to(narrow or torch.float32)
    return [weights, gradient, torch.randn(1500) * 0.1, torch.rand(1500) * 0.01, mixed]


def run(given: list, scalars: list, **options: object) -> list:
    rate, step, scale, norm, signal = scalars
    return list(
        parameter.adam_optimizer(
            rate, step, *given, scale, norm, signal, lambda_=0.02, max_norm_clip=0.7, **options
        )
    )


@pytest.mark.parametrize("signal", [None, True, False])
@pytest.mark.parametrize(("mode", "corrected"), list(itertools.product((0, 1), (0, 1))))
@pytest.mark.parametrize("narrow", [None, torch.bfloat16])
def test_steps_are_those_of_the_portable_kernel(
    on_gpu: str,
    monkeypatch: pytest.MonkeyPatch,
    signal: bool | None,
    mode: int,
    corrected: int,
    narrow: torch.dtype | None,
) -> None:
    given = inputs(narrow)
    numbers = [torch.tensor([0.01]), torch.tensor([3]), torch.tensor([8.0]), torch.tensor([20.0])]
    numbers.append(None if signal is None else torch.tensor([signal]))
    options = {"do_bias_correction": corrected, "weight_decay_mode": mode, "wanted": (True,) * 6}
    with monkeypatch.context() as portable:
        portable.setattr(fast, "ready", lambda *tensors, **options: False)
        # steps are rounded to the gradient's type, which it therefore keeps
        wide = [t if t is None or n in (1, 4) else t.double() for n, t in enumerate(given)]
        expected = run(wide, numbers, **options)
    moved = [None if t is None else t.to(on_gpu) for t in given]
    scalars = [None if t is None else t.to(on_gpu) for t in numbers]
    found = run(moved, scalars, **options)
    for ours, true in zip(found, expected, strict=True):
        assert (ours is None) == (true is None)
        if ours is not None:
            precise = PRECISION[ours.dtype]
            torch.testing.assert_close(
                ours.cpu().double(), true.double(), rtol=precise, atol=precise * 0.1
            )
    again = run(moved, scalars, **options, update=True)
    for result, other in zip(again, found, strict=True):
        assert result is other is None or torch.equal(result, other)
    places = [scalars[1], moved[2], moved[3], moved[0], None, moved[4]]
    assert all(
        result is place for result, place in zip(again, places, strict=True) if place is not None
    )


def test_weights_stay_if_only_the_step_is_read(on_gpu: str) -> None:
    given = [None if t is None else t.to(on_gpu) for t in inputs(None)]
    before = given[0].clone()
    scalars = [torch.tensor([0.01], device=on_gpu), torch.tensor([0], device=on_gpu)] + [None] * 3
    wanted = (True, True, True, False, True)
    count, first, second, weights, taken, mixed = run(given, scalars, wanted=wanted, update=True)
    assert first is given[2] and second is given[3] and mixed is None and count.item() == 1
    assert torch.equal(given[0], before)
    # a GPU adds the product that the step is without rounding it before
    torch.testing.assert_close(weights, before + taken, rtol=3e-7, atol=1e-8)
