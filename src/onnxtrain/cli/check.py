"""``onnxtrain check``: does this machine compute what the operators are defined to compute?"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Annotated

import typer

from onnxtrain.errors import OptionError

if TYPE_CHECKING:
    from onnxtrain.cli.checking.trials import Trial
    from onnxtrain.testing.case import Case


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
    gradients: Annotated[
        str,
        typer.Option(
            help="Gradients to compare with differences: some (one row an operator), all, none."
        ),
    ] = "some",
) -> None:
    """Run the operators' examples and gradients on this machine.

    Every example is compared with a result in float64, and may be off by twice torch's own error.
    The gradient rule of an operator is run, too, and compared with a central difference. Exits with
    1 if something is wrong.
    """
    from onnxtrain.cli.checking.trials import examples, slopes
    from onnxtrain.cli.console import say
    from onnxtrain.cli.device import checked_device

    if gradients not in ("some", "all", "none"):
        raise OptionError(f"--gradients is some, all or none, not '{gradients}'")
    place = checked_device(device)
    say(f"checking on {_described(place)}")
    rows = [row for row in _rows(op or []) if _can_run(row, place)]
    trials = examples(rows, all_types)
    if gradients != "none":
        trials += slopes(rows, every=gradients == "all")
    failures = _run(trials, place)
    _summary(trials, failures)
    for trial, why in failures.items():
        say(f"{trial}: {why}", "red")
    failed = sorted({trial.case.op for trial in failures})
    say(_verdict(trials, failures, place) + (f"; wrong: {', '.join(failed)}" if failed else ""))
    if failures:
        raise typer.Exit(1)


def _described(device: str) -> str:
    """A device, and what the machine calls it."""
    import platform

    import torch

    if device.startswith("cuda"):
        return f"{device} ({torch.cuda.get_device_name(device)}), torch {torch.__version__}"
    threads = torch.get_num_threads()
    kind = platform.machine() or "unknown processor"
    return f"{device} ({kind}, {threads} threads), torch {torch.__version__}"


def _rows(patterns: list[str]) -> list[Case]:
    from onnxtrain.testing.table import table

    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(case.op, pattern) for case in table()):
            raise OptionError(
                f"no example is for operator '{pattern}'\n  'onnxtrain ops' lists all operators"
            )
    return [
        case
        for case in table()
        if not patterns or any(fnmatch.fnmatchcase(case.op, p) for p in patterns)
    ]


def _can_run(case: Case, device: str) -> bool:
    from onnxtrain.testing.table import runs_on

    return runs_on(case, device)


def _run(trials: list[Trial], device: str) -> dict[Trial, str]:
    """Trials that fail, and why."""
    from rich.progress import track

    from onnxtrain.cli.console import console

    screen = console(stderr=True)
    shown = track(trials, "checking", console=screen, disable=not screen.is_terminal)
    results = {trial: trial.failure(device) for trial in shown}
    return {trial: why for trial, why in results.items() if why is not None}


def _summary(trials: list[Trial], failures: dict[Trial, str]) -> None:
    """A line for each domain: operators, and how many examples and gradients are right."""
    from onnxtrain.cli.console import grouped, table

    rows = []
    for domain in sorted({trial.case.domain for trial in trials}):
        mine = [trial for trial in trials if trial.case.domain == domain]
        cells = []
        for kind in (False, True):
            of_kind = [trial for trial in mine if trial.gradient == kind]
            wrong = sum(trial in failures for trial in of_kind)
            cells += [grouped(len(of_kind)), grouped(wrong) if wrong else "-"]
        operators = {trial.case.op for trial in mine}
        rows.append((domain or "ai.onnx", grouped(len(operators)), *cells))
    columns = ("domain", "operators", "examples", "wrong", "gradients", "wrong ones")
    table("", columns, rows, right=columns[1:])


def _verdict(trials: list[Trial], failures: dict[Trial, str], device: str) -> str:
    from onnxtrain.cli.console import grouped

    told = []
    for kind, name in ((False, "examples"), (True, "gradients")):
        of_kind = [trial for trial in trials if trial.gradient == kind]
        right = sum(trial not in failures for trial in of_kind)
        if of_kind:
            told.append(f"{grouped(right)} of {grouped(len(of_kind))} {name}")
    operators = {trial.case.op for trial in trials}
    return f"{' and '.join(told)} of {grouped(len(operators))} operators are right on {device}"
