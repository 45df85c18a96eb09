"""``onnxtrain diff``: what changed between two models."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer


def diff(
    first: Annotated[pathlib.Path, typer.Argument(metavar="A", help="The model before.")],
    second: Annotated[pathlib.Path, typer.Argument(metavar="B", help="The model after.")],
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print nothing; only the exit status tells.")
    ] = False,
) -> None:
    """Show what changed between two models.

    Lists nodes, inputs, outputs and weights that only A (-) or B (+) has or that differ (~), and
    how far every weight has moved. Exits with 0 if nothing differs, and with 1 if something does.
    """
    from onnxtrain.cli.changes import compare
    from onnxtrain.cli.console import grouped, say, table
    from onnxtrain.graph.loading.load import load_model

    found = compare(load_model(first), load_model(second))
    if not quiet:
        for line in found.lines:
            say(line, {"-": "red", "+": "green"}.get(line[0], "yellow"))
        rows = [
            (m.name, str(list(m.shape)), f"{m.before:.4g}", f"{m.distance:.4g}",
             f"{m.relative:.2%}", f"{m.largest:.4g}")
            for m in found.moved
        ]  # fmt: skip
        if rows:
            columns = ("weight", "shape", "norm in A", "norm of B-A", "relative", "largest")
            table("weights with other values", columns, rows, right=columns[2:])
        say(
            f"{grouped(len(found.moved))} weights have other values, {grouped(found.same)} the "
            f"same; {grouped(len(found.lines))} other differences"
        )
    if found.moved or found.lines:
        raise typer.Exit(1)
