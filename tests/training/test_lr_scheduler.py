"""Schedules: up to the highest rate, then down in a line, a wave or a power, or constant."""

from __future__ import annotations

import numpy as np
import pytest

from onnxtrain.api import (
    CheckpointState,
    ConstantLRScheduler,
    CosineLRScheduler,
    LinearLRScheduler,
    PolynomialLRScheduler,
)
from onnxtrain.errors import OptionError
from training.small import batch_of, load_module, load_optimizer


@pytest.fixture
def module(folder):
    return load_module(folder)


@pytest.fixture
def optimizer(folder, module):
    return load_optimizer(folder, module)


def rates(module, optimizer, scheduler, steps: int) -> list[float]:
    found = [optimizer.get_learning_rate()]
    for _ in range(steps):
        module(*batch_of().values())
        optimizer.step()
        scheduler.step()
        found.append(optimizer.get_learning_rate())
    return found


def test_two_steps_up_and_four_down(module, optimizer):
    scheduler = LinearLRScheduler(optimizer, 2, 6, 1.0)
    found = rates(module, optimizer, scheduler, 8)
    np.testing.assert_allclose(found, [0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0, 0])


def test_without_warm_up_it_starts_at_the_top(module, optimizer):
    scheduler = LinearLRScheduler(
        optimizer, warmup_step_count=0, total_step_count=4, initial_lr=0.2
    )
    np.testing.assert_allclose(rates(module, optimizer, scheduler, 4), [0.2, 0.15, 0.1, 0.05, 0])


def test_the_rate_depends_on_updates_and_not_on_calls(module, optimizer):
    scheduler = LinearLRScheduler(optimizer, 2, 6, 1.0)
    scheduler.step()
    scheduler.step()
    assert optimizer.get_learning_rate() == 0


def test_a_warm_up_longer_than_the_whole_is_refused(optimizer):
    with pytest.raises(ValueError, match=r"total_step_count \(2\) .* warmup_step_count \(10\)"):
        LinearLRScheduler(optimizer, 10, 2, 1.0)


def test_a_negative_warm_up_is_refused(optimizer):
    with pytest.raises(OptionError, match="warmup_step_count is -1"):
        LinearLRScheduler(optimizer, -1, 2, 1.0)


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        (LinearLRScheduler, {"warmup_step_count": float("nan")}),
        (LinearLRScheduler, {"warmup_step_count": "1"}),
        (LinearLRScheduler, {"total_step_count": float("inf")}),
        (LinearLRScheduler, {"total_step_count": 10.5}),
        (LinearLRScheduler, {"initial_lr": float("nan")}),
        (LinearLRScheduler, {"initial_lr": -1.0}),
        (LinearLRScheduler, {"initial_lr": None}),
        (CosineLRScheduler, {"final_factor": float("nan")}),
        (PolynomialLRScheduler, {"final_factor": "x"}),
        (PolynomialLRScheduler, {"power": float("nan")}),
        (LinearLRScheduler, {"optimizer": None}),
    ],
)
def test_what_is_no_number_is_refused_and_changes_nothing(schedule, options, optimizer):
    given = {"warmup_step_count": 1, "total_step_count": 9, "initial_lr": 0.1}
    before = (optimizer.get_learning_rate(), optimizer.state.initial_learning_rate)
    name = "Optimizer" if "optimizer" in options else next(iter(options))
    with pytest.raises(OptionError, match=name):
        schedule(**{"optimizer": optimizer, **given, **options})
    assert (optimizer.get_learning_rate(), optimizer.state.initial_learning_rate) == before


@pytest.mark.parametrize(
    ("schedule", "options", "expected"),
    [
        (CosineLRScheduler, {}, [0, 1, 2, 1.7071068, 1, 0.2928932, 0, 0]),
        (CosineLRScheduler, {"final_factor": 0.5}, [0, 1, 2, 1.8535534, 1.5, 1.1464466, 1, 1]),
        (PolynomialLRScheduler, {}, [0, 1, 2, 1.5, 1, 0.5, 0, 0]),
        (PolynomialLRScheduler, {"power": 2}, [0, 1, 2, 1.125, 0.5, 0.125, 0, 0]),
        (
            PolynomialLRScheduler,
            {"power": 2, "final_factor": 0.1},
            [0, 1, 2, 1.2125, 0.65, 0.3125, 0.2, 0.2],
        ),
        (ConstantLRScheduler, {}, [0, 1, 2, 2, 2, 2, 2, 2]),
    ],
)
def test_curves_after_the_warm_up(schedule, options, expected, optimizer):
    scheduler = schedule(optimizer, 2, 6, 2.0, **options)
    found = [2.0 * scheduler.factor(taken) for taken in range(8)]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)


def test_a_constant_rate_needs_no_end(module, optimizer):
    scheduler = ConstantLRScheduler(optimizer, 2, initial_lr=0.5)
    np.testing.assert_allclose(rates(module, optimizer, scheduler, 3), [0, 0.25, 0.5, 0.5])


@pytest.mark.parametrize("schedule", [CosineLRScheduler, PolynomialLRScheduler])
def test_a_schedule_that_is_all_warm_up(schedule, optimizer):
    scheduler = schedule(optimizer, 4, 4, 1.0)
    assert [scheduler.factor(taken) for taken in (0, 2, 4)] == [0, 0.5, 0]


def test_it_goes_on_after_a_checkpoint(folder, module, optimizer, tmp_path):
    scheduler = LinearLRScheduler(optimizer, 2, 6, 1.0)
    rates(module, optimizer, scheduler, 3)
    CheckpointState.save_checkpoint(module.state, tmp_path / "saved", include_optimizer_state=True)
    state = CheckpointState.load_checkpoint(tmp_path / "saved")
    assert state.optimizer.initial_learning_rate == 1.0
    again = load_module(folder, tmp_path / "saved")
    more = load_optimizer(folder, again)
    assert more.get_learning_rate() == 0.75
    scheduler = LinearLRScheduler(more, 2, 6, 1.0)
    np.testing.assert_allclose(rates(again, more, scheduler, 3), [0.75, 0.5, 0.25, 0])
