from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from onnxtrain import optim


def rates(scheduler, steps: int, base: float = 1.0) -> list[float]:
    found = []
    for step in range(steps):
        info = SimpleNamespace(optimization_step=step, optimizer_config=optim.SGDConfig(lr=base))
        scheduler._step(info)
        assert scheduler.get_last_lr() == scheduler.get_lr(info)
        found += scheduler.get_last_lr()
    return found


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        (optim.ConstantWarmupLRScheduler(10, warmup=0.25), [0, 0.4, 0.8, 1, 1, 1]),
        (
            optim.LinearWarmupLRScheduler(10, warmup=0.25),
            # as onnxruntime-training 1.19.2 gives them
            [0, 0.4, 0.8, 0.933333, 0.8, 0.666667, 0.533333, 0.4, 0.266667, 0.133333, 0, 0],
        ),
        (
            optim.CosineWarmupLRScheduler(10, warmup=0.25),
            [0, 0.4, 0.8, 0.989074, 0.904508, 0.75],
        ),
        (
            optim.PolyWarmupLRScheduler(4, lr_end=0.1, power=2.0, warmup=0.0),
            [1, 0.60625, 0.325, 0.15625, 0.1, 0.1],
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_curves(scheduler, expected):
    np.testing.assert_allclose(rates(scheduler, len(expected)), expected, rtol=1e-5, atol=1e-9)


def test_rates_are_shares_of_the_base():
    np.testing.assert_allclose(
        rates(optim.LinearWarmupLRScheduler(4, 0.5), 5, base=0.2), [0, 0.1, 0.2, 0.1, 0]
    )


def test_nothing_before_the_first_step():
    assert optim.ConstantWarmupLRScheduler(4).get_last_lr() == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: optim.LinearWarmupLRScheduler(0),
        lambda: optim.LinearWarmupLRScheduler(2.0),
        lambda: optim.LinearWarmupLRScheduler(2, warmup=1.0),
        lambda: optim.LinearWarmupLRScheduler(2, warmup=-0.1),
        lambda: optim.CosineWarmupLRScheduler(2, cycles=0.0),
        lambda: optim.PolyWarmupLRScheduler(2, lr_end=-1.0),
        lambda: optim.PolyWarmupLRScheduler(2, power=-1.0),
        lambda: rates(optim.PolyWarmupLRScheduler(2, lr_end=2.0), 3),
    ],
)
def test_wrong_arguments_are_assertion_errors(make):
    with pytest.raises(AssertionError):
        make()
