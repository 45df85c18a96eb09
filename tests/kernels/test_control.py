"""Events between threads, and what accumulation and the yield refuse."""

import threading
from collections.abc import Iterator

import pytest
import torch

from onnxtrain.kernels import control


@pytest.fixture(autouse=True)
def _no_events() -> Iterator[None]:
    control.reset_events()
    yield
    control.reset_events()


def test_a_thread_waits_until_the_event_is_recorded() -> None:
    x, found = torch.ones(3), []
    waiter = threading.Thread(
        target=lambda: found.extend(control.wait_event([5], x, wanted=(True,))), daemon=True
    )
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    assert list(control.record_event(5, x, wanted=())) == []
    waiter.join(10)
    assert not waiter.is_alive() and found[0] is x


def test_a_recorded_event_stays_until_all_are_reset() -> None:
    control.record_event(3, wanted=())
    control.record_event(3, wanted=())
    control.wait_event(3, wanted=())
    control.wait_event(3, wanted=())
    assert control.event(3).is_set()
    control.reset_events()
    assert not control.event(3).is_set()


def test_minus_one_is_no_event() -> None:
    x = torch.ones(2)
    assert control.wait_event(-1, x, x, wanted=(True,)) == (x,)
    assert control.record_event(-1, x, wanted=(True,)) == (x,)


@pytest.mark.parametrize("identifier", [-2, 4096])
def test_events_out_of_range_are_refused(identifier: int) -> None:
    with pytest.raises(ValueError, match=r"out of range \[0, 4096\)"):
        control.record_event(identifier, wanted=())
    with pytest.raises(ValueError, match=r"out of range \[0, 4096\)"):
        control.wait_event(identifier, wanted=())


def test_the_buffer_does_not_broadcast() -> None:
    with pytest.raises(ValueError, match=r"accumulation_buffer shape \(2, 3\)"):
        control.in_place_accumulator_v2(torch.zeros(2, 3), torch.zeros(3))


def test_the_buffer_itself_is_overwritten() -> None:
    buffer = torch.tensor([1.0, float("nan")])
    flag, out = control.in_place_accumulator_v2(buffer, torch.tensor([2.0, 3.0]), [True])
    assert out is buffer and buffer.tolist() == [2.0, 3.0] and flag.tolist() == [True]
    control.in_place_accumulator_v2(buffer, torch.tensor([2.0, 3.0]), False)
    assert buffer.tolist() == [4.0, 6.0]


def test_a_yield_cannot_be_called() -> None:
    with pytest.raises(RuntimeError, match="line between forward and backward"):
        control.yield_op(torch.ones(1), full_shape_outputs=(0,))
