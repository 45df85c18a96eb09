"""``onnxtrain check``: does this machine compute what the operators are defined to compute?"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Annotated

import typer

from onnxtrain.errors import OptionError

if TYPE_CHECKING:
    from onnxtrain.testing.case import Case
    from onnxtrain.types import DataType


def check(
    op: Annotated[
        list[str] | None,
        typer.Option(help="Operator, or a pattern such as 'Conv*' (repeat).  [default: all]"),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:1.  [default: cuda if there]")
    ] = None,
    all_types: Annotated[
        bool, typer.Option("--all-types", help="Every element type, not one a row.")
    ] = False,
) -> None:
    """Run the operators' examples on this machine.

    Every example is compared with a result in float64, and may be off by twice torch's own error.
    Exits with 1 if an example fails.
    """
    from onnxtrain.cli.console import grouped, say
    from onnxtrain.cli.device import checked_device

    place = checked_device(device)
    trials = _trials(op or [], all_types)
    operators = {case.op for case, _ in trials}
    failures = _run(trials, place)
    for case, dtype, why in failures:
        say(f"{case}, {dtype.name.lower()}: {why}", "red")
    failed = {case.op for case, _, _ in failures}
    say(
        f"{grouped(len(trials) - len(failures))} of {grouped(len(trials))} examples of "
        f"{grouped(len(operators))} operators are right on {place}"
        + (f"; wrong: {', '.join(sorted(failed))}" if failed else "")
    )
    if failures:
        raise typer.Exit(1)


def _trials(patterns: list[str], all_types: bool) -> list[tuple[Case, DataType]]:
    from onnxtrain.testing.table import one_type, table, trial_types

    rows = table()
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(case.op, pattern) for case in rows):
            raise OptionError(
                f"no example is for operator '{pattern}'\n  'onnxtrain ops' lists all operators"
            )
    trials = []
    for case in rows:
        if patterns and not any(fnmatch.fnmatchcase(case.op, p) for p in patterns):
            continue
        types = trial_types(case) if all_types else [one_type(case)]
        trials += [(case, dtype) for dtype in types if dtype is not None]
    return trials


def _run(trials: list[tuple[Case, DataType]], device: str) -> list[tuple[Case, DataType, str]]:
    """Examples that fail, and why."""
    from rich.progress import track

    from onnxtrain.cli.console import console

    screen = console(stderr=True)
    shown = track(trials, "checking", console=screen, disable=not screen.is_terminal)
    results = [(case, dtype, _failure(case, dtype, device)) for case, dtype in shown]
    return [(case, dtype, why) for case, dtype, why in results if why is not None]


def _failure(case: Case, dtype: DataType, device: str) -> str | None:
    """Why an example fails, None if it does not."""
    from onnxtrain.testing.close import mismatch
    from onnxtrain.testing.model import declared_types, draw, evaluate, named
    from onnxtrain.testing.truth import own_errors, truth

    inputs = draw(case, dtype)
    try:
        ours = evaluate(case, inputs, device)
    except Exception as error:  # whatever goes wrong is the answer to the question
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    trues, allowed = truth(case, inputs), own_errors(case, dtype, inputs)
    rows = zip(named(case), ours, trues, allowed, declared_types(case, inputs), strict=True)
    for index, our, true, own, declared in rows:
        if case.compare is not None and index not in case.compare:
            continue
        if found := mismatch(our, true, own, declared):
            return f"output {index}: {found}"
    return None
