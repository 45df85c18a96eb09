"""LAMB over many tensors by Triton beside the portable kernel in float64."""

import itertools
import math

import pytest
import torch

from onnxtrain.kernels import fast, lasting
from onnxtrain.kernels.optimizer import lamb, lamb_together

pytest.importorskip("triton", reason="Triton is not installed")

SIZES = [(1500,), (7, 3), (1,), (1024,), (0,), (40, 60)]
PRECISION = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is taken to lie on a GPU, where the interpreter of Triton stands for one."""
    monkeypatch.setattr(fast, "ready", lambda *tensors, **options: True)
    monkeypatch.setattr(fast, "ready_lists", lambda *lists: len({t.dtype for t in lists[0]}) == 1)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


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
        made, left = taken(*arguments)
        seen.extend({*range(len(SIZES))} - {*left})
        return made, left

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


@pytest.mark.gpu
def test_a_recorded_step_is_the_same() -> None:
    inputs = groups("cuda", torch.bfloat16, torch.bfloat16)
    expected = run(True, inputs, torch.float32)
    numbers = [torch.tensor(n, device="cuda") for n in (8.0, 20.0, 0.01)]
    flag, step = torch.tensor([True], device="cuda"), torch.tensor([4], device="cuda")
    graph, wanted = torch.cuda.CUDAGraph(), (True,) * (1 + len(inputs))
    with lasting.keeping() as kept, torch.cuda.graph(graph):
        found = lamb.lamb_optimizer(
            flag, *numbers, step, *inputs, **forms(len(SIZES)), wanted=wanted
        )
    graph.replay()
    assert len(kept) > 0, "tables were found, so that Triton took the step"
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.usefixtures("ready")
def test_an_empty_parameter_changes_nothing_for_the_others() -> None:
    """Parameters that are all alike are taken as they come, others are sorted by their types."""
    inputs = groups("cpu", torch.float16, torch.float16)
    empty = SIZES.index((0,))
    numbers = torch.tensor(8.0), torch.tensor(20.0), torch.tensor(0.01), torch.tensor([4])
    made = []
    for left_out in (None, empty):
        kept = [i for i in range(len(SIZES)) if i != left_out]
        given = [t for i in kept for t in inputs[5 * i : 5 * i + 5]]
        values = {name: [items[i] for i in kept] for name, items in forms(len(SIZES)).items()}
        wanted = (True,) * (1 + len(given))
        made.append(lamb.lamb_optimizer(None, *numbers, *given, **values, wanted=wanted))
    all_of_them, others = made
    del all_of_them[1 + 5 * empty : 6 + 5 * empty]
    assert len(others) == len(all_of_them) == 26
    assert all(torch.equal(a, b) for a, b in zip(others, all_of_them, strict=True))


@pytest.mark.usefixtures("ready")
def test_what_nobody_takes_is_not_made() -> None:
    inputs = groups("cpu", torch.float16, torch.float16)[:10]
    numbers = torch.tensor(8.0), torch.tensor(20.0), torch.tensor(0.01), torch.tensor([4])
    values = {name: items[:2] for name, items in forms(2).items()}
    found = []
    for asked in (True, False):
        wanted = (True, *(True, asked, True, True, asked) * 2)
        found.append(lamb.lamb_optimizer(None, *numbers, *inputs, **values, wanted=wanted))
    for number, (all_of_them, few) in enumerate(zip(*found, strict=True)):
        if number and number % 5 in (0, 2):
            assert all_of_them is not None and few is None
        else:
            assert torch.equal(all_of_them, few)


@pytest.mark.usefixtures("ready")
def test_a_gradient_that_is_too_small_is_refused() -> None:
    inputs = groups("cpu", torch.float32, None)[:5]
    inputs[1] = inputs[1][:-1]
    values = {name: items[:1] for name, items in forms(1).items()}
    numbers = torch.tensor(8.0), torch.tensor(20.0), torch.tensor(0.01), torch.tensor([4])
    with pytest.raises(RuntimeError, match="must match"):
        lamb.lamb_optimizer(None, *numbers, *inputs, **values, wanted=(True,) * 6)


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
