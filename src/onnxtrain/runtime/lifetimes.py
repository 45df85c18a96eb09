"""How long values live: where each is freed, and which dying storage an output takes over."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import onnx_ir as ir

from onnxtrain.graph.bindings import same_shape
from onnxtrain.runtime import copies
from onnxtrain.runtime.plan import Block, Step

UNREAD = "_"
"""The local of results that nobody reads."""


class Storages:
    """Which names may share storage: sets joined by the ``view`` facts of kernels.

    Attributes:
        fresh: Names with storage of their own.
        whole: Names that have every element of fresh storage once, whatever their shape.
    """

    def __init__(self, block: Block) -> None:
        self._parent: dict[str, str] = {}
        self.fresh: set[str] = set()
        self.whole: set[str] = set()
        for step in block.walk():
            if not step.kernel.view and not step.nested:
                self.own(step.written)
                continue
            pairs = list(shared(step))
            sharing = {out for _, out in pairs}
            self.own([name for name in step.written if name not in sharing])
            for source, out in pairs:
                if step.kernel.whole and source in self.whole:
                    self.whole.add(out)
                self.join(source, out)

    def own(self, names: Sequence[str]) -> None:
        """Say that names have storage of their own."""
        self.fresh.update(names)
        self.whole.update(names)

    def root(self, name: str) -> str:
        """The representative of a name's set."""
        found = name
        while (parent := self._parent.get(found, found)) != found:
            found = parent
        while name != found:  # the next search is short
            self._parent[name], name = found, self._parent[name]
        return found

    def join(self, a: str, b: str) -> None:
        """Say that two names may share storage."""
        self._parent[self.root(b)] = self.root(a)


def shared(step: Step) -> Iterator[tuple[str, str]]:
    """Pairs (input, output) of a step that may share storage.

    With subgraphs that may be any two: as many pairs are given as join them all.
    """
    kernel = step.kernel
    together = [*dict.fromkeys(name for block in step.nested for name in block.results)]
    for index, source in enumerate(step.reads):
        if source is None:
            continue
        parameter = kernel.input_name(index)
        if parameter in kernel.view:
            which = kernel.view[parameter]
            for position, out in enumerate(step.outputs):
                if out and (which is None or position in which):
                    yield source, out
        elif step.nested:
            together.append(source)
    if together and step.written:
        yield from ((together[0], out) for out in step.written)
        yield from ((source, step.written[0]) for source in together[1:])


def own_outputs(block: Block, fixed: set[str], copy_name: str) -> Storages:
    """Give every result storage of its own: no caller's input, no state, no other result."""
    storages = Storages(block)
    taken = {storages.root(name) for name in fixed}
    copied = copies.declared(copies.copy)
    results = []
    names = {name for step in block.walk() for name in step.written} | fixed
    for name in block.results:
        root = storages.root(name)
        if root in taken:
            own = _fresh(f"{name}_out", names)
            block.steps.append(Step(copied, copy_name, (name,), (name,), (own,), {}, own))
            storages.own([own])
            name = own
        taken.add(root)
        results.append(name)
    block.results = tuple(results)
    return storages


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def assign(
    block: Block,
    fixed: set[str],
    values: Mapping[str, ir.Value],
    *,
    storages: Storages | None = None,
    reuse: bool = True,
    state: Collection[str] | None = None,
) -> None:
    """Set ``frees`` and ``out`` of every step, in place.

    Args:
        block: The steps.
        fixed: Names that are never freed or overwritten.
        values: What the names stand for.
        storages: Which names may share storage, if that is known already.
        reuse: Whether outputs may take over the storage of dying inputs.
        state: Names of bound tensors in whose place steps may keep inputs that die in them.
    """
    last = _last_reads(block)
    storages = storages or Storages(block)
    final = _last_by_storage(last, storages)
    kept = {storages.root(name) for name in fixed | seen_outside(block)}
    for index, step in enumerate(block.steps):
        for nested in step.nested:
            assign(nested, fixed | nested.captured() | set(nested.parameters), values, reuse=reuse)
        if reuse and step.kernel.inplace:
            step.out = _reusable(step, index, storages, final, kept, values)
        if state is not None and "taken" in step.kernel.needs:
            step.keywords["taken"] = repr(
                _is_handed_over(step, index, storages, final, kept, state)
            )
        names = step.reads_all.union(step.written)
        frees = [n for n in names if last.get(n, index) == index and n not in fixed]
        step.frees = tuple(sorted(frees))
        spare = step.kernel.outputs > len(step.outputs) or None in step.outputs
        if spare and any(step.outputs):
            step.frees += (UNREAD,)


def _is_handed_over(
    step: Step,
    index: int,
    storages: Storages,
    final: Mapping[str, int],
    kept: set[str],
    state: Collection[str],
) -> bool:
    """Whether a step may keep inputs that die in it in place of bound tensors, without a copy.

    That gives the bound tensors other addresses, which a recorded step would not know.
    """
    kernel = step.kernel
    pairs = [(kernel.input_name(i), name) for i, name in enumerate(step.reads) if name]
    overwritten = [name for parameter, name in pairs if parameter in kernel.mutates]
    others = [n for p, n in pairs if p not in kernel.mutates and p not in kernel.host]
    roots = [storages.root(name) for name in others]
    dying = all(final.get(root) == index and root not in kept for root in roots)
    return dying and all(name in state for name in overwritten)


def seen_outside(block: Block) -> set[str]:
    """Names whose storage others hold: what a step hands out in its middle, and gets back."""
    yields = [step for step in block.steps if step.kernel.special == "yield"]
    return {name for step in yields for name in (*step.reads, *step.outputs) if name}


def _last_reads(block: Block) -> dict[str, int]:
    """Index of the last step that reads a name that this block defines; results live on."""
    defined: set[str] = set()
    last: dict[str, int] = {}
    for index, step in enumerate(block.steps):
        last.update(dict.fromkeys(step.reads_all, index))
        defined.update(step.written)
        last.update(dict.fromkeys(step.written, index))
    last.update({name: len(block.steps) for name in block.results})
    outer = {name: len(block.steps) for name in last if name not in defined}
    return last | outer


def _last_by_storage(last: Mapping[str, int], storages: Storages) -> dict[str, int]:
    final: dict[str, int] = {}
    for name, index in last.items():
        root = storages.root(name)
        if final.get(root, -1) < index:
            final[root] = index
    return final


def _reusable(
    step: Step,
    index: int,
    storages: Storages,
    final: Mapping[str, int],
    kept: set[str],
    values: Mapping[str, ir.Value],
) -> str | None:
    """An input that dies here and whose storage fits the first output exactly."""
    target = step.outputs[0]
    if target is None:
        return None
    output = values.get(target)
    for position, name in enumerate(step.reads):
        if name is None or step.kernel.input_name(position) not in step.kernel.inplace:
            continue
        root = storages.root(name)
        dies = final.get(root) == index and root not in kept and name in storages.whole
        if dies and not _read_otherwise(step, name, storages) and _fits(values.get(name), output):
            return name
    return None


def _read_otherwise(step: Step, name: str, storages: Storages) -> bool:
    """Whether a step reads the storage of an input in other ways than element by element.

    It does through a view of the input, or if the input is also passed for a parameter that may
    not be overwritten.
    """
    kernel, root = step.kernel, storages.root(name)
    for position, other in enumerate(step.reads):
        if other is None or storages.root(other) != root:
            continue
        if other != name or kernel.input_name(position) not in kernel.inplace:
            return True
    return any(storages.root(other) == root for b in step.nested for other in b.captured())


def _fits(value: ir.Value | None, output: ir.Value | None) -> bool:
    if value is None or output is None or value.dtype is None:
        return False
    return value.dtype == output.dtype and same_shape(value, output)


def live_bytes(block: Block, size: Callable[[str], int]) -> list[tuple[Step, int]]:
    """Bytes held after each step, given the size of every local; the largest is the peak.

    What may share storage is held until the last of its names is freed, and counted once.
    """
    storages = Storages(block)
    held: dict[str, int] = {}
    alive: dict[str, set[str]] = {}
    profile = []
    for step in block.steps:
        if step.out:
            held.pop(storages.root(step.out), None)
        for name in step.written:
            root = storages.root(name)
            alive.setdefault(root, set()).add(name)
            if name in storages.fresh:
                held[root] = held.get(root, 0) + size(name)
        profile.append((step, sum(held.values())))
        for name in step.frees:
            root = storages.root(name)
            alive.setdefault(root, set()).discard(name)
            if not alive[root]:
                held.pop(root, None)
    return profile
