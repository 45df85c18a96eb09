"""Prefetched batches: their order, how far ahead, errors of the source, and stopping."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from onnxtrain.data import prefetch
from onnxtrain.errors import OptionError


def numbered(count: int, seen: list[int] | None = None) -> Iterator[dict[str, np.ndarray]]:
    for index in range(count):
        if seen is not None:
            seen.append(index)
        yield {"x": np.full((2, 3), index, np.float32)}


def until(condition: Callable[[], bool]) -> None:
    """Wait for a thread, but not for ever."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "the thread did not get there"
        time.sleep(0.005)


def test_batches_come_in_order(device: str) -> None:
    found = [batch["x"] for batch in prefetch(numbered(20), device)]
    assert [float(x[0, 0]) for x in found] == list(range(20))
    if device == "cuda":
        assert all(x.is_cuda for x in found)


def test_the_source_is_read_in_another_thread_and_not_too_far() -> None:
    seen: list[int] = []
    with prefetch(numbered(50, seen), "cpu", ahead=3) as batches:
        next(batches)
        until(lambda: len(seen) >= 5)
        time.sleep(0.05)
        # one handed out, three ready, one in the hand of the thread
        assert len(seen) == 5


def test_an_error_comes_where_its_batch_would() -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield from numbered(3)
        raise ValueError("the file is cut off")

    batches = prefetch(failing(), "cpu", ahead=4)
    assert [float(next(batches)["x"][0, 0]) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="the file is cut off"):
        next(batches)
    assert list(batches) == []


def test_the_end_stays_the_end() -> None:
    batches = prefetch(numbered(2), "cpu")
    assert len(list(batches)) == 2
    assert list(batches) == []
    batches.close()


def test_leaving_early_stops_the_thread_and_closes_the_source() -> None:
    closed = []

    def source() -> Iterator[dict[str, Any]]:
        try:
            yield from numbered(1000)
        finally:
            closed.append(threading.current_thread().name)

    with prefetch(source(), "cpu") as batches:
        next(batches)
    assert closed == ["prefetch"]
    assert list(batches) == []
    assert not batches._thread.is_alive()


def test_a_forgotten_iterator_stops_its_thread() -> None:
    batches = prefetch(numbered(1000), "cpu")
    next(batches)
    thread = batches._thread
    del batches
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_some_batch_must_be_allowed() -> None:
    with pytest.raises(OptionError, match="ahead is 0, must be at least 1"):
        prefetch(numbered(1), "cpu", ahead=0)


@pytest.mark.gpu
def test_what_is_no_number_or_for_the_host_stays() -> None:
    batch = {
        "x": np.arange(6, dtype=np.float32),
        "half": torch.ones(3, dtype=torch.float16),
        "words": np.array(["a", "b"]),
        "shape": np.array([2, 3]),
        "there": torch.ones(2, device="cuda"),
    }
    with prefetch([batch], "cuda", host=["shape"]) as batches:
        found = next(batches)
    assert found["x"].tolist() == [0, 1, 2, 3, 4, 5] and found["x"].is_cuda
    assert found["half"].is_cuda and found["there"] is batch["there"]
    assert found["words"] is batch["words"] and found["shape"] is batch["shape"]


@pytest.mark.gpu
def test_nobody_waits_for_copies() -> None:
    large = [{"x": torch.full((1 << 20,), float(i))} for i in range(12)]
    total = torch.zeros((), device="cuda")
    with prefetch(large, "cuda") as batches:
        first = next(batches)["x"].sum()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for batch in batches:
                total += batch["x"].mean()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert first.item() == 0 and total.item() == sum(range(12))
