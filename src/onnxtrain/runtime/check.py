"""Proof of a plan: what must hold before a step is allowed to run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from onnxtrain.errors import GraphError
from onnxtrain.runtime.lifetimes import UNREAD, Storages, seen_outside
from onnxtrain.runtime.plan import Block, Plan, Step


def check(plan: Plan) -> None:
    """Check a plan.

    Whether an output fits the storage that it takes over is not checked: a kernel refuses others.

    Raises:
        GraphError: if a name is read or freed before it is defined or after it was freed, if
            storage is overwritten that is still read, or handed out, or that others own, if an
            argument, constant or state tensor is freed, or if a result has no storage of its own.
    """
    fixed = {*plan.constants, *plan.state.values()}
    spans = _block(plan.block, fixed)
    taken = {spans.storages.root(name) for name in fixed | set(plan.block.parameters)}
    for name in plan.block.results:
        root = spans.storages.root(name)
        if root in taken:
            raise GraphError(f"result '{name}' lies in storage of an input, the state or a result")
        taken.add(root)


def _block(block: Block, outer: set[str]) -> _Spans:
    fixed = outer | set(block.parameters)
    defined = set(fixed)
    spans = _Spans(block)
    held = {spans.storages.root(name) for name in fixed | seen_outside(block)}
    for index, step in enumerate(block.steps):
        for nested in step.nested:
            _block(nested, set(defined))
        if unknown := step.reads_all - defined:
            raise GraphError(f"step '{step.node}' reads {sorted(unknown)}, undefined or freed")
        if clash := defined.intersection(step.written):
            raise GraphError(f"step '{step.node}' defines {sorted(clash)} a second time")
        for name in _overwritten(step):
            if readers := spans.old_readers(name, index):
                raise GraphError(
                    f"step '{step.node}' overwrites '{name}', read later as {sorted(readers)}"
                )
        _taken_over(step, index, spans, held)
        defined.update(step.written)
        if freed := fixed.intersection(step.frees):
            raise GraphError(f"step '{step.node}' frees {sorted(freed)}, which it does not own")
        if unknown := frozenset(step.frees) - defined - {UNREAD}:
            raise GraphError(f"step '{step.node}' frees {sorted(unknown)}, undefined or freed")
        defined.difference_update(step.frees)
    if lost := set(block.results) - defined:
        raise GraphError(f"results {sorted(lost)} were freed or never defined")
    return spans


def _taken_over(step: Step, index: int, spans: _Spans, held: set[str]) -> None:
    """Check the storage that a step takes over, for its first output or for bound tensors.

    Raises:
        GraphError: if it is not the step's to take.
    """
    root = spans.storages.root
    for name in _handed_over(step):
        if root(name) in held or spans.is_read_after(name, index):
            raise GraphError(f"step '{step.node}' keeps '{name}', which others read")
    if step.out is None:
        return
    if step.out not in _inputs(step, step.kernel.inplace):
        raise GraphError(f"step '{step.node}' overwrites '{step.out}', which is no input for that")
    if root(step.out) in held:
        raise GraphError(f"step '{step.node}' overwrites '{step.out}', which it does not own")
    if step.out not in spans.storages.whole:
        raise GraphError(f"step '{step.node}' overwrites '{step.out}', a part of its storage")
    if aliases := spans.aliases(step):
        raise GraphError(
            f"step '{step.node}' overwrites '{step.out}' while it reads {sorted(aliases)}"
        )


def _handed_over(step: Step) -> set[str]:
    """Names whose storage a step keeps in place of bound tensors."""
    if step.keywords.get("taken") != "True":
        return set()
    kernel = step.kernel
    names = [kernel.input_name(position) for position in range(len(step.reads))]
    return _inputs(step, set(names) - {*kernel.mutates, *kernel.host})


def _overwritten(step: Step) -> set[str]:
    """Names whose storage a step writes into."""
    kernel = step.kernel
    inside = [inner for block in step.nested for inner in block.steps]
    found = {name for inner in inside for name in _overwritten(inner)}
    if kernel.mutates or kernel.updates:
        found |= _inputs(step, kernel.mutates) | _updated(step)
    return found | {step.out} if step.out else found


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

    def is_read_after(self, name: str, index: int) -> bool:
        """Whether any name in the storage of one is read after a step."""
        return any(self.last[n] > index for n in self.by_root[self.storages.root(name)])

    def old_readers(self, name: str, index: int) -> set[str]:
        """Names of the old value in the same storage that are read after a step."""
        return {
            other
            for other in self.by_root[self.storages.root(name)]
            if self.defined[other] < index < self.last[other]
        }
