"""Calls that are replayed from a CUDA graph, as steps of training are: the device's time alone."""

from __future__ import annotations

import functools

import torch

from onnxtrain.kernels.lasting import keeping
from op_row import Call


@functools.cache
def _stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()


@functools.cache
def _pool() -> torch.cuda.CUDAGraph:
    """A graph that lives as long as all others, which have their memory where it has its own."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(_stream()):
        graph.capture_begin()
        torch.empty(1, device="cuda").zero_()
        graph.capture_end()
    return graph


def recorded(call: Call, times: int = 1) -> Call | None:
    """What replays so many calls, one after the other, of which each gives new results.

    None if they cannot be recorded, as one that waits for the device.
    """
    graph, pool = torch.cuda.CUDAGraph(), _pool().pool()
    _stream().wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(_stream()), keeping() as kept:
            call()
            torch.cuda.synchronize()
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                results = [call() for _ in range(times)]
            finally:
                graph.capture_end()
            del results
    except RuntimeError as error:
        print(f"cannot be recorded: {str(error).splitlines()[0]}")
        _start_anew()
        return None
    return functools.partial(_replay, graph, kept)


def _replay(graph: torch.cuda.CUDAGraph, kept: list[object]) -> None:
    """Replay a graph that reads what was kept for it."""
    graph.replay()


def _start_anew() -> None:
    """Random numbers again after a recording that failed, of which torch's generator would wait."""
    torch.cuda.synchronize()
    fresh = torch.Generator("cuda").manual_seed(0)
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(fresh.graphsafe_get_state())
