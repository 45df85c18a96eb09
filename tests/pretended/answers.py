"""What torch.cuda answers while a GPU is pretended."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from pretended import graphs, limits
from pretended.generators import DEFAULT, Generator
from pretended.rules import READS, Mistake

CAPABILITY = (9, 0)
PROPERTIES = types.SimpleNamespace(
    name="pretended",
    major=CAPABILITY[0],
    minor=CAPABILITY[1],
    multi_processor_count=132,
    shared_memory_per_block_optin=227 << 10,
    total_memory=80 << 30,
)


class Stream:
    """Work runs at once and in order, whatever the stream. Nothing is found about waits."""

    def __init__(self, *given: object, **options: object) -> None:
        self.device = torch.device("cuda", 0)

    @property
    def cuda_stream(self) -> int:
        """Nobody else knows it."""
        limits.stop("streams")

    def synchronize(self) -> None:
        """Wait for nothing."""
        synchronize()

    def wait_stream(self, stream: object) -> None:
        """Wait for nothing."""
        limits.note("streams")

    def wait_event(self, event: object) -> None:
        """Wait for nothing."""
        limits.note("streams")

    def record_event(self, event: Event | None = None) -> Event:
        """What says that all has happened."""
        return event or Event()


class Event:
    """It has happened already."""

    def __init__(self, *given: object, **options: object) -> None: ...

    def record(self, stream: object = None) -> None:
        """It has."""

    def wait(self, stream: object = None) -> None:
        """Wait for nothing."""
        limits.note("streams")

    def query(self) -> bool:
        """It has."""
        return True

    def synchronize(self) -> None:
        """Wait for nothing."""
        synchronize()

    def elapsed_time(self, other: Event) -> float:
        """Nobody knows."""
        limits.stop("time")


ONLY = Stream()


def synchronize(device: object = None) -> None:
    """Wait for nothing, which a recording does not allow."""
    if graphs.recording():
        raise Mistake("the host waits for the device while a graph is recorded")


@contextlib.contextmanager
def stream(which: object) -> Any:
    """Run in order nevertheless."""
    limits.note("streams")
    yield


def set_sync_debug_mode(mode: int | str) -> None:
    """Let reads of the host be errors or not."""
    READS.forbidden = mode in (2, "error")


def ends(limit: str) -> Callable[..., Any]:
    """What no test can ask here."""
    return lambda *given, **options: limits.stop(limit)


def always(value: Any) -> Callable[..., Any]:
    """A function of anything."""
    return lambda *given, **options: value


ANSWERS: dict[str, Any] = {
    "_lazy_init": always(None),
    "_sleep": ends("time"),
    "CUDAGraph": graphs.Graph,
    "Event": Event,
    "Stream": Stream,
    "current_device": always(0),
    "current_stream": always(ONLY),
    "default_generators": (DEFAULT,),
    "default_stream": always(ONLY),
    "device": always(contextlib.nullcontext()),
    "device_count": always(1),
    "empty_cache": always(None),
    "get_device_capability": always(CAPABILITY),
    "get_device_name": always(PROPERTIES.name),
    "get_device_properties": always(PROPERTIES),
    "get_rng_state": lambda device=None: DEFAULT.get_state(),
    "graph": graphs.record,
    "graph_pool_handle": always((0, 0)),
    "is_available": always(True),
    "is_current_stream_capturing": graphs.recording,
    "is_initialized": always(True),
    "manual_seed": DEFAULT.manual_seed,
    "manual_seed_all": DEFAULT.manual_seed,
    "max_memory_allocated": ends("memory"),
    "memory_allocated": ends("memory"),
    "memory_reserved": ends("memory"),
    "reset_peak_memory_stats": ends("memory"),
    "set_device": always(None),
    "set_rng_state": lambda state, device=None: DEFAULT.set_state(state),
    "set_stream": always(None),
    "set_sync_debug_mode": set_sync_debug_mode,
    "stream": stream,
    "synchronize": synchronize,
}


def answering() -> contextlib.ExitStack:
    """With: torch.cuda answers as if there were one GPU."""
    stack = contextlib.ExitStack()
    for name, answer in ANSWERS.items():
        stack.enter_context(mock.patch.object(torch.cuda, name, answer))
    stack.enter_context(mock.patch.object(torch, "Generator", Generator))
    return stack
