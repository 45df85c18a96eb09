"""``onnxtrain gradcheck``: are the gradients of a model right?"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from onnxtrain.cli.checking.differences import Checked


def gradcheck(
    model: Annotated[pathlib.Path, typer.Argument(metavar="MODEL", help="The ONNX model.")],
    loss: Annotated[
        str | None,
        typer.Option(help="Value to differentiate; all floating point outputs if left out."),
    ] = None,
    data: Annotated[
        pathlib.Path | None,
        typer.Option(help="File with an array for each input; inputs without one are made up."),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="How many rows of each array of --data; all.")
    ] = None,
    inputs: Annotated[
        bool, typer.Option("--inputs", help="Check the gradients of the model's inputs too.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of inputs and directions.")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="Directions for each parameter.")] = 3,
    size: Annotated[
        int | None,
        typer.Option(min=1, help="Size of free dimensions of the inputs; tried if left out."),
    ] = None,
    single: Annotated[
        bool, typer.Option("--float", help="In float, for operators that do not take double.")
    ] = False,
    bound: Annotated[
        float | None,
        typer.Option(min=0, help="Largest error that is right; 1e-6, with --float 1e-2."),
    ] = None,
) -> None:
    """Compare a model's gradients with differences.

    Runs the model in double on random inputs or on those of a file, without Dropout and with the
    statistics of the batch, and compares the slope of every trainable parameter along random
    directions with a central difference. Exits with 1 if an error is above the bound.
    """
    from onnxtrain.cli.checking.checked_model import checked_model
    from onnxtrain.cli.checking.differences import Differences
    from onnxtrain.cli.checking.gradcheck_feeds import feeds_for
    from onnxtrain.cli.console import say
    from onnxtrain.types import DataType

    dtype = DataType.FLOAT if single else DataType.DOUBLE
    limit = bound if bound is not None else 1e-2 if single else 1e-6
    made = checked_model(model, loss, dtype, with_inputs=inputs)
    feeds = feeds_for(made, data, rows, size, seed)
    against = Differences(made.model, feeds, made.names, made.ys, seed)
    against.check_finite()
    results = [against.check(name, samples) for name in against.names]
    results.sort(key=lambda one: one.error, reverse=True)
    for name in made.data:
        say(f"input '{name}': {'x'.join(map(str, feeds[name].shape)) or 'scalar'}")
    _show(results)
    worst = results[0]
    if worst.error > limit:
        _refuse(results, limit)
    say(f"right: the worst error is {worst.error:.1e} in '{worst.name}', the bound {limit:g}")


def _show(results: list[Checked]) -> None:
    from onnxtrain.cli.console import grouped, table

    rows = [
        (
            one.name,
            grouped(one.elements),
            f"{one.by_graph:.9g}",
            f"{one.by_difference:.9g}",
            f"{one.error:.1e}",
        )
        for one in results
    ]
    columns = ("parameter", "elements", "slope by graph", "by difference", "error")
    table("worst direction of each parameter", columns, rows, right=columns[1:])


def _refuse(results: list[Checked], bound: float) -> None:
    from onnxtrain.cli.console import fail

    wrong = [one for one in results if one.error > bound]
    worst = wrong[0]
    fail(
        f"the gradients of {len(wrong)} of {len(results)} parameters are off by more than "
        f"{bound:g}, the worst is '{worst.name}'\n"
        f"  graph       {worst.by_graph:.9g}\n"
        f"  difference  {worst.by_difference:.9g}\n"
        "  a corner of the model near the inputs looks like this too: try another --seed; "
        "--loss NAME checks the model up to an inner value"
    )
    raise typer.Exit(1)
