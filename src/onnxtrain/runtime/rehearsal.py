"""Steps whose kernels are compiled at once, as a rehearsal on tensors without memory finds them.

Triton compiles a kernel when it is first launched, and the step waits for one after the other. When
that happens in the first run of a step, the step is gone through without doing anything, and all
kernels that it asks for are compiled by several threads.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from onnxtrain.kernels import fast

_log = logging.getLogger(__name__)
MOST_THREADS = 16
"""That compile; what Triton does in Python is done by one at a time."""
FEWEST = 64
"""Nodes of a step that has enough kernels for torch to import what imitates it, which takes 1 s."""
IMPORTED = "torch.fx.experimental.symbolic_shapes"


class Imitated(TorchDispatchMode):
    """With: what a device would do is done on tensors without memory, and the rest as ever."""

    def __init__(self, device: torch.device) -> None:
        from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

        super().__init__()  # type: ignore[no-untyped-call]
        self._kind = device.type
        self._without_memory = FakeTensor
        self._mode = FakeTensorMode()

    def __torch_dispatch__(
        self,
        operator: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """An operator, done or imitated."""
        options = kwargs or {}
        if not any(map(self._is_there, tree_leaves((args, options)))):
            return operator(*args, **options)
        args, options = tree_map_only(torch.Tensor, self._imitation, (args, options))
        with self._mode:
            return operator(*args, **options)

    def _is_there(self, value: Any) -> bool:
        """Whether a value is on the device, or the device itself."""
        if isinstance(value, torch.device):
            return value.type == self._kind
        if not isinstance(value, torch.Tensor):
            return False
        return isinstance(value, self._without_memory) or value.device.type == self._kind

    def _imitation(self, value: torch.Tensor) -> torch.Tensor:
        return value if isinstance(value, self._without_memory) else self._mode.from_tensor(value)


@contextlib.contextmanager
def offered(
    step: Callable[..., Any],
    arguments: Sequence[Any],
    device: torch.device,
    generators: Sequence[torch.Generator],
    nodes: int,
) -> Iterator[None]:
    """With: as soon as a kernel had to be compiled, a step is rehearsed, once.

    Args:
        step: What is run meanwhile: nothing but operators, whose results depend on no value.
        arguments: With which it is run.
        device: Where.
        generators: What it draws from.
        nodes: How many operators it has.
    """
    threads = min(os.cpu_count() or 1, MOST_THREADS)
    pays = threads > 1 and (nodes >= FEWEST or IMPORTED in sys.modules)
    if not pays or not _is_compiled_for(device):
        yield
        return
    waiting = True

    def compiled() -> None:
        nonlocal waiting
        if waiting:
            waiting = False
            rehearse(step, arguments, device, generators, threads)

    with fast.load("common.ahead").noticing(compiled):
        yield


def rehearse(
    step: Callable[..., Any],
    arguments: Sequence[Any],
    device: torch.device,
    generators: Sequence[torch.Generator],
    threads: int,
) -> None:
    """Compile the kernels that a step takes, as far as it gets without values; nothing changes."""
    states = [generator.get_state() for generator in generators]
    try:
        with (
            warnings.catch_warnings(),
            fast.load("common.ahead").compiling(threads),
            Imitated(device),
        ):
            warnings.simplefilter("ignore")
            _through(step, arguments)
    except Exception as error:
        _log.debug("a rehearsal ended early, later kernels are compiled one by one: %s", error)
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _through(step: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Run a step to its end; one that hands out values in the middle gets gradients of all."""
    running = step(*arguments)
    if isinstance(running, types.GeneratorType):
        handed = next(running)
        found = tuple(torch.empty_like(t) if t.is_floating_point() else None for t in handed)
        with contextlib.suppress(StopIteration):
            running.send(found)


def _is_compiled_for(device: torch.device) -> bool:
    """Whether a device takes kernels of Triton, and that can compile several at once."""
    if device.type != "cuda" or not fast.serves(device.index or 0):
        return False
    triton = importlib.import_module("triton")
    return hasattr(triton, "AsyncCompileMode") and hasattr(triton, "knobs")
