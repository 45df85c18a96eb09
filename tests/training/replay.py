"""What stands in for CUDA graphs on the CPU: a tape of torch's operations over fixed memory.

Like a CUDA graph it leaves memory alone while it records, and then repeats the same operations on
the same tensors: what the host read while it recorded is not read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from onnxtrain.kernels.optimizer import device
from onnxtrain.runtime import capture
from onnxtrain.training import optimizer, runner
from onnxtrain.transforms import backward
from onnxtrain.types import CUDA, Provider


class Tape(TorchDispatchMode):
    """Writes operations down; ``restore`` undoes what they did to memory that was there before."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._made: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in _written(func, args, kwargs):
            if id(tensor) not in self._made:
                self._before.setdefault(id(tensor), (tensor, tensor.clone()))
        result = func(*args, **kwargs)
        self._made.update(map(id, tree_leaves(result)))
        self._calls.append((func, args, kwargs, result))
        return result

    def restore(self) -> None:
        for tensor, old in self._before.values():
            tensor.copy_(old)

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, result in self._calls:
                if func is torch.ops.aten.empty.memory_format:
                    continue  # it may have been given another size later
                again = func(*args, **kwargs)
                if all(out.alias_info is None for out in func._schema.returns):
                    for own, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                        if isinstance(own, torch.Tensor):
                            own.copy_(new)


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Tensors that an operation overwrites."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


class Tapes:
    """Stands in for ``CudaGraphs``."""

    def __init__(self, device: torch.device) -> None:
        del device

    def obstacle(self) -> str | None:
        return None

    def record(
        self, work: Callable[[], list[Any]], generators: Sequence[torch.Generator]
    ) -> tuple[Callable[[], None], list[Any]]:
        states = [generator.get_state() for generator in generators]
        tape = Tape()
        try:
            with tape:
                results = work()
        finally:
            tape.restore()
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
        return tape.replay, results


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU record, and train as a GPU does: no number is read by the host.

    What is joined on a CPU alone has no kernels elsewhere.
    """

    def provider(device: torch.device) -> Provider:
        del device
        return CUDA

    monkeypatch.setattr(capture, "CudaGraphs", Tapes)
    monkeypatch.setattr(backward, "ON_CPU", ())
    monkeypatch.setattr(runner, "provider_of", provider)
    monkeypatch.setattr(optimizer, "provider_of", provider)
    monkeypatch.setattr(device, "unread", lambda number: isinstance(number, torch.Tensor))
