"""Steps recorded as CUDA graphs: one launch replays all kernels of a step.

The first runs with inputs of some shapes are ordinary ones, which warm up libraries and compile
kernels. The next one is recorded, and all later ones replay the record: same kernels, same order,
same results.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnxtrain.kernels.lasting import keeping
from onnxtrain.runtime.obstacle import obstacle
from onnxtrain.runtime.plan import Argument
from onnxtrain.runtime.program import Program

WARM_UP = 2
"""Ordinary runs before a recording."""
MOST = 8
"""Shapes of inputs that are remembered; a recording of each holds the memory of its results."""
LARGEST_HOST_INPUT = 64
"""Elements of an input on the host up to which its values may be a part of the key."""

Key = tuple[Any, ...]
Work = Callable[..., tuple[Any, ...]]


class CudaGraphs:
    """Records work on a device as CUDA graphs, all in one pool of memory.

    The graphs must be replayed one after the other, and what they give be copied before the next.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None

    def obstacle(self) -> str | None:
        """Why nothing can be recorded; None if it can."""
        if self._device.type != "cuda":
            return "only steps on a CUDA device are recorded"
        return None

    def record(
        self, work: Callable[[], list[Any]], generators: Sequence[torch.Generator]
    ) -> tuple[Callable[[], None], list[Any]]:
        """Record work without doing it.

        Returns:
            What does the work, and its results, which are overwritten every time.
        """
        if self._stream is None or self._pool is None:
            self._stream = torch.cuda.Stream(self._device)
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        states = [generator.get_state() for generator in generators]
        before = torch.cuda.current_stream(self._device)
        mode = "thread_local"
        try:
            with (
                torch.cuda.device(self._device),
                torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode=mode),
            ):
                results = work()
        except Exception:
            self._pool = None
            torch.cuda.set_stream(before)
            torch.cuda.synchronize(self._device)
            for generator, state in zip(generators, states, strict=True):
                # one that was in use when a recording broke off would wait for its end
                generator.graphsafe_set_state(generator.clone_state())
                generator.set_state(state)
            raise
        return graph.replay, results


@dataclasses.dataclass
class Recording:
    """A recorded step: fill the inputs, replay, read the results.

    Attributes:
        replay: Does the work again.
        inputs: What the work reads, one for each argument.
        copied: Which of them are filled; the others are a part of the key.
        results: What the work writes.
        kept: What else it reads and nobody else may hold.
    """

    replay: Callable[[], None]
    inputs: list[Any]
    copied: list[bool]
    results: list[Any]
    kept: list[object]

    def run(self, args: Sequence[Any]) -> list[Any]:
        """The results for other inputs; the next run overwrites them."""
        for own, given, copied in zip(self.inputs, args, self.copied, strict=True):
            if copied:
                own.copy_(given, non_blocking=True)
        self.replay()
        return self.results


class Recorder:
    """Does work, recorded where that is possible.

    Args:
        work: What to do: takes tensors, gives values; all else that it reads stays where it is.
        outputs: Which of its results are wanted.
        programs: The programs that it runs.
        arguments: What it takes.
        graphs: Where recordings are made; those of other recorders share their memory.
        why_not: A reason not to record that the programs do not show.

    Attributes:
        why_not: Why steps are not recorded; None if they are.
    """

    def __init__(
        self,
        work: Work,
        outputs: Sequence[int],
        programs: Sequence[Program],
        arguments: Sequence[Argument] = (),
        graphs: CudaGraphs | None = None,
        why_not: str | None = None,
    ) -> None:
        self._work = work
        self._outputs = tuple(outputs)
        self._programs = tuple(programs)
        self._host = [argument.host for argument in arguments]
        self._device = programs[0].device
        self.graphs = graphs or CudaGraphs(self._device)
        found = (self.graphs.obstacle(), why_not, *(obstacle(p.plan) for p in programs))
        self.why_not = next((reason for reason in found if reason), None)
        self._known: collections.OrderedDict[Key, int | Recording] = collections.OrderedDict()
        self._bindings = self._bound()

    @property
    def recordings(self) -> int:
        """How many recordings there are."""
        return sum(isinstance(known, Recording) for known in self._known.values())

    def run(self, args: Sequence[Any]) -> list[Any]:
        """The wanted results, in storage that later runs leave alone."""
        recording = None if self.why_not else self._recording(args)
        if recording is None:
            return self._wanted(*args)
        return [self._own(result) for result in recording.run(args)]

    def _wanted(self, *args: Any) -> list[Any]:
        results = self._work(*args)
        return [results[index] for index in self._outputs]

    def _recording(self, args: Sequence[Any]) -> Recording | None:
        """The recording for such inputs, made when it is time; None for an ordinary run."""
        key = self._key(args)
        if key is None:
            return None
        if self._bindings != self._bound():
            self._known.clear()
            self._bindings = self._bound()
        known = self._known.setdefault(key, 0)
        self._known.move_to_end(key)
        while len(self._known) > MOST:
            self._known.popitem(last=False)
        if isinstance(known, Recording):
            return known
        if known < WARM_UP:
            self._known[key] = known + 1
            return None
        return self._record(key, args)

    def _bound(self) -> tuple[int, ...]:
        return tuple(program.bindings for program in self._programs)

    def _is_fixed(self, value: torch.Tensor, host: bool) -> bool:
        """Whether the host reads a value when the step is recorded."""
        return host or value.device.type != self._device.type

    def _key(self, args: Sequence[Any]) -> Key | None:
        """What a recording depends on: shapes and types, and values that the host reads."""
        parts = []
        for value, host in zip(args, self._host, strict=True):
            if not isinstance(value, torch.Tensor):
                return None
            part: Key = (value.dtype, value.shape)
            if self._is_fixed(value, host):
                if value.numel() > LARGEST_HOST_INPUT:
                    return None
                part = (*part, tuple(value.reshape(-1).tolist()))
            parts.append(part)
        return tuple(parts)

    def _record(self, key: Key, args: Sequence[Any]) -> Recording | None:
        """Record a step without running it; None (and a reason) if something forbids that."""
        copied = [not self._is_fixed(v, host) for v, host in zip(args, self._host, strict=True)]
        inputs = [v.clone() if c else v for v, c in zip(args, copied, strict=True)]
        generators = [program.rng for program in self._programs]
        try:
            with keeping() as kept:
                replay, results = self.graphs.record(lambda: self._wanted(*inputs), generators)
        except Exception as error:
            self.why_not = str(error).splitlines()[0]
            self._known.clear()
            return None
        recording = Recording(replay, inputs, copied, results, kept)
        self._known[key] = recording
        return recording

    def _own(self, value: Any) -> Any:
        """A result outside of the memory that the next run overwrites."""
        on_device = isinstance(value, torch.Tensor) and value.device.type == self._device.type
        return value.clone() if on_device else value
