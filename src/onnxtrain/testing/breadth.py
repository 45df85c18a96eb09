"""What the tests of gradients have seen of each operator."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import onnx
import torch

from onnxtrain.gradients.rules import all_rules
from onnxtrain.testing import gradcheck, trials
from onnxtrain.testing.case import Case
from onnxtrain.testing.table import schema_of
from onnxtrain.testing.truth import reference
from onnxtrain.testing.wanted import (
    AUTOGRAD,
    DIFFERENCES,
    NEGATIVE_AXIS,
    SHAPES,
    STRETCHED,
    TWICE,
    Key,
)
from onnxtrain.types import ONNX, DataType

Shapes = tuple[tuple[int, ...], ...]
ENOUGH = {ONNX: 3}
"""Shapes that count as several; two in the other domains."""


@dataclasses.dataclass
class Seen:
    """What the rows of one operator show.

    Attributes:
        labels: All that was seen, in the words of ``wanted``.
        shapes: Shapes of the inputs that gradients are taken by.
    """

    labels: set[str] = dataclasses.field(default_factory=set)
    shapes: set[Shapes] = dataclasses.field(default_factory=set)


@functools.cache
def seen() -> dict[Key, Seen]:
    """What was seen of every operator that has a rule."""
    found = {(r.domain, r.op): Seen() for r in all_rules() if r.fn is not None}
    tests = {
        DIFFERENCES: trials.by_differences(),
        AUTOGRAD: [c for d in (DataType.DOUBLE, DataType.FLOAT) for c in trials.by_autograd(d)],
        TWICE: trials.twice(),
    }
    rows: dict[int, Case] = {}
    for label, cases in tests.items():
        for case in cases:
            if (of := found.get((case.domain, case.op))) is not None:
                of.labels.add(label)
                rows[id(case)] = case
    for case in rows.values():
        look_at(case, found[case.domain, case.op])
    for (domain, _), of in found.items():
        if len(of.shapes) >= ENOUGH.get(domain, 2):
            of.labels.add(SHAPES)
    return found


def look_at(case: Case, of: Seen) -> None:
    """Add what a row shows."""
    values = case.draw()
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    moved = [values[index].shape for index in gradcheck.differentiable(case, values)]  # type: ignore[arg-type, union-attr]
    of.shapes.add(tuple(map(tuple, moved)))
    if moved and all(t.numel() for t in tensors):
        of.labels.add(f"rank {min(max(map(len, moved)), 3)}")
    of.labels |= {*_attributes(case), *_optional(case, values), *_stretched(case, values)}
    for index, value in enumerate(values):
        if isinstance(value, torch.Tensor) and _formal(case, index) in ("axis", "axes"):
            of.labels |= {NEGATIVE_AXIS} if bool((value < 0).any()) else set()


def _formal(case: Case, index: int) -> str:
    """The schema's name of an input; those of the last one are counted if there may be many."""
    formals = schema_of(case).inputs
    last = formals[min(index, len(formals) - 1)]
    many = last.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    return f"{last.name}_{index}" if many else str(last.name)


def _attributes(case: Case) -> Iterator[str]:
    for name, declared in schema_of(case).attributes.items():
        value = case.attributes.get(name, _default(declared))
        if value is None:
            continue
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, (str, int)):
                yield f"{name}={item}"
            if name in ("axis", "axes") and item < 0:
                yield NEGATIVE_AXIS


def _default(declared: Any) -> Any:
    if not declared.default_value.type:
        return None
    value = onnx.helper.get_attribute_value(declared.default_value)
    return value.decode() if isinstance(value, bytes) else value


def _optional(case: Case, values: Sequence[Any]) -> Iterator[str]:
    for index, formal in enumerate(schema_of(case).inputs):
        present = index < len(values) and values[index] is not None
        yield f"{'with' if present else 'without'} {formal.name}"


def _stretched(case: Case, values: Sequence[Any]) -> Iterator[str]:
    """Inputs that are smaller than what they are combined with, but for the axes of products."""
    if (case.domain, case.op) not in STRETCHED or "trans" in str(case):
        return
    kept = {"MatMul": -2, "FusedMatMul": -2}.get(case.op)
    shapes = {
        _formal(case, index): tuple(v.shape[:kept])
        for index, v in enumerate(values)
        if isinstance(v, torch.Tensor)
    }
    if case.op == "Gemm":
        shapes = {"C": shapes.get("C", ()), "Y": tuple(reference(case, values)[0].shape)}
    whole = torch.broadcast_shapes(*shapes.values())
    yield from (f"{name} stretched" for name, shape in shapes.items() if shape != tuple(whole))
