"""A model run again and again with a few inputs changed: only what depends on them is computed.

That holds for the bodies of Loop, Scan and If as well, turn by turn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

import onnx_ir as ir
import torch

from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.plan import Block, Step
from onnxtrain.runtime.session import InferenceSession

Values = dict[str, Any]


class Again(InferenceSession):
    """A session that keeps every value of its first run.

    Later runs take an input for unchanged if it is the very same array.
    """

    def __init__(self, model: ir.Model) -> None:
        super().__init__(model, SessionOptions(seed=0, reuse_storage=False))
        self._calls = [_Call(step) for step in self.plan.block.steps]
        self._given: dict[str, Any] = {}
        self._values: Values = {}

    def run_torch(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]
    ) -> list[Any]:
        changed = [a for a in self.plan.inputs if input_feed[a.name] is not self._given.get(a.name)]
        first = not self._given
        values = self._values if first else dict(self._values)
        if first:
            self._given = {a.name: input_feed[a.name] for a in self.plan.inputs}
            values.update(self._program._names)
        values.update({a.local: self._feeds.one(a, input_feed[a.name]) for a in changed})
        with torch.no_grad():
            _run(self._calls, values, None if first else {a.local for a in changed})
        return [values[self.plan.block.results[index]] for index in self._picked(output_names)]


class _Call:
    """A step on its own; nothing is freed after it.

    Attributes:
        code: The call, without the functions of its bodies.
        reads: Names that it and its bodies read.
        writes: Names that it defines.
        compared: Those of them that may be the same although what was read is not.
        bodies: Its bodies.
    """

    def __init__(self, step: Step) -> None:
        text, _ = dataclasses.replace(step, nested=(), frees=()).lines(0)[0]
        self.code: CodeType = compile(text + "\n", f"<{step.node}>", "exec")
        self.reads = step.reads_all
        self.writes = step.written
        self.compared: list[str] = []
        self.bodies = [_Body(block) for block in step.nested]


class _Body:
    """The steps of a subgraph, and the names from outside that they need."""

    def __init__(self, block: Block) -> None:
        self.name, self.parameters, self.results = block.name, block.parameters, block.results
        self.calls = [_Call(step) for step in block.steps]
        needed = {*block.captured(), *block.results}
        for call in self.calls:
            needed.update(call.code.co_names, *(body.needs for body in call.bodies))
        self.needs = needed
        self.inner = [body.name for call in self.calls for body in call.bodies]


class _Turns:
    """A body as a function that keeps the values of each call.

    Args:
        body: The body.
        outer: Values around it.
        dirty: Names around it that have another value than in the first run; None in that run.
        kept: Values of each call of the first run.
    """

    def __init__(
        self, body: _Body, outer: Values, dirty: set[str] | None, kept: list[Values]
    ) -> None:
        self._body, self._outer, self.kept = body, outer, kept
        self._dirty = None if dirty is None else dirty & body.needs
        self._count = 0

    def __call__(self, *given: Any) -> tuple[Any, ...]:
        body, outer = self._body, self._outer
        old = None
        if self._dirty is not None and self._count < len(self.kept):
            old = self.kept[self._count]
        self._count += 1
        values = {} if old is None else dict(old)
        values.update({name: outer[name] for name in body.needs if name in outer})
        if old is not None:
            values.update({name: old[name] for name in body.inner})  # each goes on from its own
        values.update(zip(body.parameters, given, strict=True))
        dirty = None if old is None else self._changed(old, given)
        _run(body.calls, values, dirty)
        if self._dirty is None:
            self.kept.append(values)
        return tuple(values[name] for name in body.results)

    def _changed(self, old: Values, given: Sequence[Any]) -> set[str]:
        """Names that the body reads and that differ from those of the same call before."""
        assert self._dirty is not None
        pairs = zip(self._body.parameters, given, strict=True)
        return self._dirty | {name for name, value in pairs if not _is_same(old[name], value)}


def _run(calls: Sequence[_Call], values: Values, dirty: set[str] | None) -> None:
    """Run steps in place; of those that ran before only what reads a dirty name (None: all)."""
    for call in calls:
        if dirty is None:
            _prepare(call, values, None)
            exec(call.code, values)
            call.compared = [name for name in call.writes if _is_comparable(values[name])]
        elif not dirty.isdisjoint(call.reads):
            _prepare(call, values, dirty)
            before = [values.get(name) for name in call.compared]
            exec(call.code, values)
            dirty.update(call.writes)
            for name, old in zip(call.compared, before, strict=True):
                if _is_same(old, values[name]):
                    dirty.remove(name)


def _prepare(call: _Call, values: Values, dirty: set[str] | None) -> None:
    """Make the bodies of a call functions that it can call."""
    for body in call.bodies:
        kept = [] if dirty is None else values[body.name].kept
        values[body.name] = _Turns(body, values, dirty, kept)


def _is_comparable(value: Any) -> bool:
    """Whether a value is whole numbers, such as a shape or the place of a maximum."""
    return isinstance(value, torch.Tensor) and not value.is_floating_point()


def _is_same(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if not _is_comparable(old) or not _is_comparable(new):
        return False
    return old.dtype == new.dtype and torch.equal(old, new)
