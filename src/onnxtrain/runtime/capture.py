"""Steps recorded as CUDA graphs: one launch replays all kernels of a step.

The first runs with inputs of some shapes are ordinary ones, which warm up libraries and compile
kernels. The next one is recorded, and all later ones replay the record: same kernels, same order,
same results.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from onnxtrain.runtime.program import Program
from onnxtrain.types import op_name

WARM_UP = 2
"""Ordinary runs before a recording."""
MOST = 8
"""Recordings that are kept; each holds the memory of a step."""
LARGEST_HOST_INPUT = 64
"""Elements of an input on the host up to which its values may be a part of the key."""

Key = tuple[Any, ...]


@dataclasses.dataclass
class Recording:
    """A recorded step: fill the inputs, replay, read the results."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Any]
    results: tuple[Any, ...]

    def replay(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The results for other inputs; the next replay overwrites them."""
        for own, given in zip(self.inputs, args, strict=True):
            if isinstance(own, torch.Tensor) and own.is_cuda:
                own.copy_(given, non_blocking=True)
        self.graph.replay()
        return self.results


class Recorder:
    """Runs a program, recorded where that is possible.

    Attributes:
        why_not: Why steps are not recorded; None if they are.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.why_not = obstacle(program)
        self._known: collections.OrderedDict[Key, int | Recording] = collections.OrderedDict()
        self._bindings = program.bindings

    @property
    def recordings(self) -> int:
        """How many recordings there are."""
        return sum(isinstance(known, Recording) for known in self._known.values())

    def run(self, args: Sequence[Any], outputs: Sequence[int]) -> list[Any]:
        """Some of the program's outputs, in storage that later runs leave alone."""
        key = None if self.why_not else self._key(args)
        if key is None:
            results = self.program(*args)
            return [results[index] for index in outputs]
        if self._bindings != self.program.bindings:
            self._known.clear()
            self._bindings = self.program.bindings
        known = self._known.setdefault(key, 0)
        self._known.move_to_end(key)
        if isinstance(known, int) and known < WARM_UP:
            self._known[key] = known + 1
            results = self.program(*args)
            return [results[index] for index in outputs]
        recording = known if isinstance(known, Recording) else self._record(key, args)
        if recording is None:
            return self.run(args, outputs)
        results = recording.replay(args)
        return [_kept(results[index]) for index in outputs]

    def _key(self, args: Sequence[Any]) -> Key | None:
        """What a recording depends on: shapes and types, and values that the host reads."""
        parts = []
        for argument, value in zip(self.program.plan.inputs, args, strict=True):
            if not isinstance(value, torch.Tensor):
                return None
            part: Key = (value.dtype, value.shape)
            if argument.host or not value.is_cuda:
                if value.numel() > LARGEST_HOST_INPUT:
                    return None
                part = (*part, tuple(value.reshape(-1).tolist()))
            parts.append(part)
        return tuple(parts)

    def _record(self, key: Key, args: Sequence[Any]) -> Recording | None:
        """Record a step without running it; None (and a reason) if something forbids that."""
        inputs = [
            arg.clone() if isinstance(arg, torch.Tensor) and arg.is_cuda else arg for arg in args
        ]
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.program.rng)
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                results = self.program(*inputs)
        except Exception as error:
            torch.cuda.synchronize(self.program.device)
            self.why_not = str(error).splitlines()[0]
            self._known.clear()
            return None
        recording = Recording(graph, inputs, results)
        self._known[key] = recording
        while len(self._known) > MOST:
            self._known.popitem(last=False)
        return recording


def obstacle(program: Program) -> str | None:
    """Why a program cannot be recorded, as far as its plan tells; None if it seems possible."""
    if program.device.type != "cuda":
        return "only steps on a CUDA device are recorded"
    if program.plan.yields:
        return "the loss is computed outside of the step"
    for step in program.steps:
        name = op_name(step.kernel.domain, step.kernel.op)
        if step.kernel.special is not None:
            return f"{name} (node '{step.node}') does more than compute"
        if "rng_host" in step.keywords.values():
            return f"{name} (node '{step.node}') draws on the host"
    return None


def _kept(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) and value.is_cuda else value
