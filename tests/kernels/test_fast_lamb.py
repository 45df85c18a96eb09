"""LAMB over many tensors by Triton beside the portable kernel in float64."""

import itertools
import math

import pytest
import torch

from onnxtrain.kernels import fast
from onnxtrain.kernels.optimizer import lamb, lamb_together

pytest.importorskip("triton", reason="Triton is not installed")

SIZES = [(1500,), (7, 3), (1,), (1024,), (0,), (40, 60)]
PRECISION = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is taken to lie on a GPU, where the interpreter of Triton stands for one."""
    monkeypatch.setattr(fast, "ready", lambda *tensors, **options: True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    import onnxtrain.kernels.fast.chunks as chunks

    monkeypatch.setattr(chunks, "_recorded", lambda tensor: False)


def groups(device: str, gradient: torch.dtype, mixed: torch.dtype | None) -> list:
    found = []
    for size in SIZES:
        weights, first = torch.randn(size), torch.randn(size) * 0.1
        second = torch.rand(size) * 0.01
        found += [weights, torch.randn(size).to(gradient), first, second]
        found.append(None if mixed is None else weights.to(mixed))
    return [None if t is None else t.to(device) for t in found]


def forms(count: int) -> dict[str, list[float]]:
    cycle = itertools.cycle([0.9, 0.8])
    return {
        "alpha": [next(cycle) for _ in range(count)],
        "beta": [0.99] * count,
        "lambda_": [0.01 * (number % 2) for number in range(count)],
        "epsilon": [1e-6] * count,
        "max_norm_clip": [1.0 + number for number in range(count)],
    }


def run(signal: bool | None, inputs: list, dtype: torch.dtype, **options: float) -> list:
    device = inputs[0].device
    numbers = [torch.tensor(n, dtype=dtype, device=device) for n in (8.0, 20.0, 0.01)]
    flag = None if signal is None else torch.tensor([signal], device=device)
    step = torch.tensor([4], device=device)
    wanted = (True,) * (1 + len(inputs))
    return lamb.lamb_optimizer(
        flag, *numbers, step, *inputs, **forms(len(SIZES)), **options, wanted=wanted
    )


@pytest.mark.parametrize("signal", [None, True, False])
@pytest.mark.parametrize(
    ("gradient", "mixed"),
    [(torch.float32, None), (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16)],
)
def test_steps_are_those_of_the_portable_kernel(
    device: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    signal: bool | None,
    gradient: torch.dtype,
    mixed: torch.dtype | None,
) -> None:
    inputs = groups(device, gradient, mixed)
    # steps are rounded to the gradient's type, which it therefore keeps
    wide = [
        None if t is None else t.cpu().double() if number % 5 in (0, 2, 3) else t.cpu()
        for number, t in enumerate(inputs)
    ]
    expected = run(signal, wide, torch.float64, ratio_max=5.0)
    if device == "cpu":
        request.getfixturevalue("ready")
    taken = lamb_together.updated_together
    seen: list[int] = []

    def counted(*arguments):
        made = taken(*arguments)
        seen.extend(made)
        return made

    monkeypatch.setattr(lamb, "updated_together", counted)
    found = run(signal, inputs, torch.float32, ratio_max=5.0)
    assert sorted(seen) == [0, 1, 2, 3, 5], "all but the empty one"
    assert len(found) == len(expected)
    for number, (ours, true) in enumerate(zip(found, expected, strict=True)):
        assert (ours is None) == (true is None)
        if ours is None or number == 0:
            assert ours is true is None or torch.equal(ours.cpu(), true)
            continue
        precise, allowed = PRECISION[ours.dtype], 1e-6
        if number % 5 in (0, 1):  # weights: a step may have been rounded to its type's next number
            step = expected[(number - 1) // 5 * 5 + 2].double().abs()
            allowed += PRECISION[gradient] * max(step.flatten().tolist(), default=0.0)
        torch.testing.assert_close(ours.cpu().double(), true.double(), rtol=precise, atol=allowed)


@pytest.mark.usefixtures("ready")
def test_what_is_not_finite_stays_as_it_was() -> None:
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    gradient = torch.tensor([math.nan, 1.0, math.inf, 1.0])
    moments = [torch.full((4,), 0.5), torch.full((4,), 0.25)]
    zeros = [torch.zeros(4)] * 4
    numbers = {"alpha": [0.9], "beta": [0.99], "lambda_": [0.0], "epsilon": [1e-6]}
    given = (None, None, None, torch.tensor(0.1), torch.tensor(1))
    _, new, taken, first, second, _ = lamb.lamb_optimizer(
        *given, weights, gradient, *moments, None, **numbers, wanted=(True,) * 6
    )
    for place in (0, 2):
        assert (new[place], taken[place]) == (weights[place], 0)
        assert (first[place], second[place]) == (0.5, 0.25)
    assert all(new[place] < weights[place] for place in (1, 3))
    # without norms the rate is not scaled
    _, new, *_ = lamb.lamb_optimizer(*given, *zeros, None, **numbers, wanted=(True,) * 6)
    assert torch.equal(new, zeros[0])
