"""LinearLRScheduler: up to the highest rate, then down to zero."""

from __future__ import annotations

import numpy as np
import pytest

from onnxtrain.api import CheckpointState, LinearLRScheduler
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
