"""CUDA graphs as logs of operators: recording leaves memory as it was, a replay runs them again.

What the host read while it recorded stays as it was. Results hold NaN until the first replay, so
that whoever reads them before is found.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from pretended.generators import DEFAULT
from pretended.rules import READS, Mistake


@dataclasses.dataclass(frozen=True)
class Entry:
    """An operator that ran.

    Attributes:
        work: Runs it.
        args: What it got by position: tensors of the device, copies of those of the host.
        kwargs: What it got by name.
        made: Its results that have memory of their own, which is used again, by their place.
    """

    work: Callable[..., Any]
    args: Any
    kwargs: Any
    made: dict[int, Tensor]

    def replay(self) -> None:
        """Run it again."""
        results = _tensors(self.work(*self.args, **self.kwargs))
        for place, own in self.made.items():
            own.copy_(results[place])


class Graph:
    """Stands in for ``torch.cuda.CUDAGraph``."""

    def __init__(self, keep_graph: bool = False) -> None:
        del keep_graph
        self.generators: list[torch.Generator] = [DEFAULT]
        self.entries: list[Entry] = []
        self.before: list[tuple[Tensor, Tensor]] = []

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Let it be as it was when the recording ends."""
        self.generators.append(generator)

    def replay(self) -> None:
        """Run what was recorded."""
        if _recorded is not None:
            raise Mistake("a graph is replayed while another is recorded")
        with torch.no_grad():
            for entry in self.entries:
                entry.replay()


_recorded: Graph | None = None


def recording() -> bool:
    """Whether a graph is recorded."""
    return _recorded is not None


@contextlib.contextmanager
def record(graph: Graph, *where: object, **options: object) -> Iterator[None]:
    """Stands in for ``torch.cuda.graph``."""
    global _recorded
    del where, options
    states = [generator.get_state() for generator in graph.generators]
    _recorded, READS.recording = graph, True
    try:
        yield
    finally:
        _recorded, READS.recording = None, False
        for tensor, old in reversed(graph.before):
            tensor.copy_(old)
        graph.before.clear()
        for generator, state in zip(graph.generators, states, strict=True):
            generator.set_state(state)
        for tensor in (t for entry in graph.entries for t in entry.made.values()):
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)


def before(func: Any, args: Any, kwargs: Any) -> None:
    """Keep what an operator is about to overwrite, if a graph is recorded."""
    if _recorded is None or not _writes(func):
        return
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            _recorded.before += [(t, t.clone()) for t in _tensors(value)]


def after(
    work: Callable[..., Any], func: Any, args: Any, kwargs: Any, results: Any, here: list[Tensor]
) -> None:
    """Write an operator down, if a graph is recorded; views and empty memory stay what they are."""
    if _recorded is None:
        return
    taken = {_memory(t) for t in _tensors((args, kwargs))}
    made = {i: t for i, t in enumerate(_tensors(results)) if _memory(t) not in taken}
    if not _writes(func) and (not made or "empty" in func._schema.name):
        return

    def kept(value: Any) -> Any:
        return value.clone() if any(value is t for t in here) else value

    _recorded.entries.append(Entry(work, *tree_map(kept, (args, kwargs)), made))


def _memory(tensor: Tensor) -> int:
    """The same number for tensors that share memory, whatever a schema says of its results."""
    return tensor.untyped_storage().data_ptr()


def _writes(func: Any) -> bool:
    """Whether an operator writes into memory that it was given."""
    return func._schema.is_mutable and torch.Tag.inplace_view not in func.tags


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
