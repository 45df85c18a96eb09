"""The page ``docs/operators.md``: every operator, what runs it, and how its gradient is proven.

``python -m onnxtrain.testing.operators`` writes the page, ``make operators`` does the same.
"""

from __future__ import annotations

import functools
import inspect
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import onnx

from onnxtrain.cli.coverage import Coverage, coverage
from onnxtrain.graph import schemas
from onnxtrain.testing import breadth
from onnxtrain.testing.facts import Facts, facts
from onnxtrain.testing.reasons import REASONS
from onnxtrain.testing.unseen import UNSEEN
from onnxtrain.types import CPU, CUDA

PAGE = pathlib.Path("docs/operators.md")
_NEWEST = 2**31 - 1
_COLUMNS = (
    "operator",
    "CPU",
    "CUDA",
    "versions",
    "gradient",
    "second gradient",
    "rows",
    "checked",
    "remarks",
)
_INTRO = """# Operators

This page is made by `make operators` from what the registries and the case table hold; a test fails
when it is out of date.

- **CPU**, **CUDA**: whether a kernel is registered; *body* where the operator runs as the nodes of
  its schema's function body.
- **versions**: the opset versions in which the operator was defined or changed and that run.
- **gradient**: *rule* with the file under `src/onnxtrain/gradients`; *zero* where the derivative is
  zero almost everywhere; *body* where the function body is differentiated; *none* with the reason.
- **second gradient**: *yes* if every operator that the rule emits on the rows of the table has a
  gradient itself; else the operators that have none.
- **rows**: rows of the case table. Each tests values in its element types against float64.
- **checked**: *fd* if rows compare the gradient with central differences along three random
  directions, in float64 where the operator takes it; *autograd* if they compare it with torch's, to
  nine digits in float64; *fd²* if they compare the second gradient with differences of the first;
  then how many shapes that is done in. A test fails if an operator lacks one of these, a rank, a
  stretched operand, a value of a setting or an optional input, and has no reason among those at the
  end of this page. Beside the table, every floating point case of ONNX's own node suite is
  differentiated and compared with differences (`tests/onnx_backend`). What happens at ties and
  kinks, where differences say nothing, is [a page of its own](kinks.md).
- **remarks**: what the rule says of itself, and the floating point inputs without a gradient.
"""


def page() -> str:
    """The text of the page."""
    rows = coverage()
    known = facts()
    parts = [_INTRO, _summary(rows)]
    for domain in sorted({row.domain for row in rows}):
        own = [row for row in rows if row.domain == domain]
        lines = [_line(row, known.get((row.domain, row.op), Facts())) for row in own]
        parts.append("\n".join([f"## {domain or 'ai.onnx'}", "", *_table(lines)]) + "\n")
    parts.append(_reasons())
    return "\n".join(parts)


def _summary(rows: list[Coverage]) -> str:
    kinds = [gradient_of(row) for row in rows]
    counts = {kind: kinds.count(kind) for kind in ("rule", "zero", "body", "none")}
    tested = facts().values()
    return (
        f"{len(rows)} operators: {counts['rule']} with a gradient rule, {counts['zero']} whose "
        f"gradient is zero, {counts['body']} by their function body, {counts['none']} without. "
        f"{sum(f.rows for f in tested)} rows, of which "
        f"{sum(f.differences for f in tested)} compare gradients with differences, "
        f"{sum(f.autograd for f in tested)} with autograd and "
        f"{sum(f.twice for f in tested)} second gradients with differences.\n"
    )


def _table(lines: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(_COLUMNS)} |"
    yield "|" + "---|" * len(_COLUMNS)
    for line in lines:
        yield f"| {' | '.join(cell.replace('|', '∣') for cell in line)} |"


def _line(row: Coverage, of: Facts) -> tuple[str, ...]:
    kind = gradient_of(row)
    return (
        row.op,
        *(_runs(row, provider) for provider in (CPU, CUDA)),
        _versions(row),
        _gradient(row, kind),
        _second(kind, of),
        str(of.rows) if of.rows else "-",
        _checked(row, of),
        _remarks(row, of),
    )


def gradient_of(row: Coverage) -> str:
    """``rule``, ``zero``, ``body`` or ``none``."""
    if row.gradient:
        return row.gradient
    return "body" if has_body(row) else "none"


def has_body(row: Coverage) -> bool:
    """Whether the newest schema of an operator has a function body."""
    schema: Any = schemas.get(row.domain, row.op, _newest(row.domain))
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


def _newest(domain: str) -> int:
    return onnx.defs.onnx_opset_version() if not domain else _NEWEST


def _runs(row: Coverage, provider: object) -> str:
    if any(provider in kernel.on for kernel in row.kernels):
        return "yes"
    return "body" if has_body(row) else "no"


@functools.cache
def _defined() -> dict[tuple[str, str], set[int]]:
    """Versions in which each operator was defined or changed."""
    found: dict[tuple[str, str], set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        found.setdefault((schema.domain, schema.name), set()).add(schema.since_version)
    return found


def _versions(row: Coverage) -> str:
    found = sorted(_defined().get((row.domain, row.op), ()))
    if not row.kernels:
        return _joined(found)
    run = [v for v in found if any(k.since <= v <= (k.until or v) for k in row.kernels)]
    return _joined(run)


def _joined(numbers: Iterable[object]) -> str:
    return " ".join(map(str, numbers))


def _gradient(row: Coverage, kind: str) -> str:
    if kind == "rule":
        places = sorted({r.place.partition(":")[0] for r in row.rules if r.fn is not None})
        return f"rule, {_joined(places)}"
    return f"none: {REASONS.get(row.name, 'not known')}" if kind == "none" else kind


def _second(kind: str, of: Facts) -> str:
    if kind != "rule" or not of.differences:
        return "zero" if kind == "zero" else "-"
    return f"not through {', '.join(sorted(of.once))}" if of.once else "yes"


def _checked(row: Coverage, of: Facts) -> str:
    found = breadth.seen().get((row.domain, row.op))
    words = {"fd": of.differences, "autograd": of.autograd, "fd²": of.twice}
    ways = [word for word, count in words.items() if count]
    if found is None or not ways:
        return "elsewhere" if gradient_of(row) in ("rule", "body") else "-"
    count = len(found.shapes)
    return f"{', '.join(ways)}; {count} shape{'s' if count > 1 else ''}"


def _reasons() -> str:
    """What is not seen of which operator, and why."""
    lines = ["## What the rows do not show", "", "| why | operator: what |", "|---|---|"]
    for reason, patterns in UNSEEN.items():
        lines.append(f"| {reason} | {'<br>'.join(f'`{pattern}`' for pattern in patterns)} |")
    return "\n".join(lines) + "\n"


def _remarks(row: Coverage, of: Facts) -> str:
    texts = []
    for rule in row.rules:
        text = "" if rule.fn is None else inspect.getdoc(inspect.unwrap(rule.fn)) or ""
        first = " ".join(text.partition("\n\n")[0].split())
        if first and first not in texts:
            texts.append(first)
    if never := sorted(of.silent - of.reached):
        texts.append(f"No gradient for {', '.join(never)}.")
    return " ".join(texts)


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    target.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {target}\n")
