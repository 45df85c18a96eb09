"""Proof of a plan: what must hold before a step is allowed to run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from onnxtrain.errors import GraphError
from onnxtrain.runtime.lifetimes import Storages
from onnxtrain.runtime.plan import Block, Plan, Step


def check(plan: Plan) -> None:
    """Check a plan.

    Raises:
        GraphError: if a name is read before it is defined or after it was freed, if storage that
            is still read is overwritten, or if an argument, constant or state tensor is freed.
    """
    _block(plan.block, {*plan.constants, *plan.state.values()})


def _block(block: Block, outer: set[str]) -> None:
    fixed = outer | set(block.parameters)
    defined = set(fixed)
    spans = _Spans(block)
    for index, step in enumerate(block.steps):
        for nested in step.nested:
            _block(nested, set(defined))
        if unknown := step.reads_all - defined:
            raise GraphError(f"step '{step.node}' reads {sorted(unknown)}, undefined or freed")
        if clash := defined.intersection(step.written):
            raise GraphError(f"step '{step.node}' defines {sorted(clash)} a second time")
        if step.out in fixed:
            raise GraphError(f"step '{step.node}' overwrites '{step.out}', which it does not own")
        for name in _overwritten(step):
            if readers := spans.old_readers(name, index):
                raise GraphError(
                    f"step '{step.node}' overwrites '{name}', read later as {sorted(readers)}"
                )
        if aliases := spans.aliases(step):
            raise GraphError(
                f"step '{step.node}' overwrites '{step.out}' while it reads {sorted(aliases)}"
            )
        defined.update(step.written)
        if freed := fixed.intersection(step.frees):
            raise GraphError(f"step '{step.node}' frees {sorted(freed)}, which it does not own")
        defined.difference_update(step.frees)
    if lost := set(block.results) - defined:
        raise GraphError(f"results {sorted(lost)} were freed or never defined")


def _overwritten(step: Step) -> set[str]:
    """Names whose storage a step writes into."""
    kernel = step.kernel
    if not (kernel.mutates or kernel.updates or step.out):
        return set()
    names = _inputs(step, kernel.mutates) | _updated(step)
    return names | ({step.out} if step.out else set())


def _updated(step: Step) -> set[str]:
    """State that a step updates; the next one that updates it goes on from the new value."""
    bound = step.keywords.get("update") == "True"
    return _inputs(step, step.kernel.updates) if bound else set()


def _inputs(step: Step, parameters: Collection[str]) -> set[str]:
    """Names that a step reads as some parameters of its kernel."""
    return {
        name
        for position, name in enumerate(step.reads)
        if name is not None and step.kernel.input_name(position) in parameters
    }


class _Spans:
    """Where each name of a block is defined and last read, by the storage it may share."""

    def __init__(self, block: Block) -> None:
        self.storages = Storages(block)
        self.defined: dict[str, int] = defaultdict(lambda: -1)
        self.last: dict[str, int] = {}
        for index, step in enumerate(block.steps):
            self.defined.update(dict.fromkeys(step.written, index))
            self.last.update(dict.fromkeys(step.reads_all - _updated(step), index))
        self.last.update({name: len(block.steps) for name in block.results})
        self.by_root: dict[str, list[str]] = defaultdict(list)
        for name in self.last:
            self.by_root[self.storages.root(name)].append(name)

    def aliases(self, step: Step) -> set[str]:
        """Names in the storage that a step's first output takes over, which it may not read."""
        if step.out is None:
            return set()
        root = self.storages.root(step.out)
        safe = {
            position
            for position, name in enumerate(step.reads)
            if name == step.out and step.kernel.input_name(position) in step.kernel.inplace
        }
        return {
            name
            for position, name in enumerate(step.reads)
            if name is not None and position not in safe and self.storages.root(name) == root
        }

    def old_readers(self, name: str, index: int) -> set[str]:
        """Names of the old value in the same storage that are read after a step."""
        return {
            other
            for other in self.by_root[self.storages.root(name)]
            if self.defined[other] < index < self.last[other]
        }
