"""``onnxtrain gradcheck``: are the gradients of a model right?"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxtrain.cli.differences import Checked, Differences


def gradcheck(
    model: Annotated[pathlib.Path, typer.Argument(metavar="MODEL", help="The ONNX model.")],
    loss: Annotated[
        str | None,
        typer.Option(help="Value to differentiate; all floating point outputs if left out."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of inputs and directions.")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="Directions for each parameter.")] = 3,
    size: Annotated[int, typer.Option(min=1, help="Size of free dimensions of the inputs.")] = 3,
    bound: Annotated[float, typer.Option(min=0, help="Largest error that is right.")] = 1e-6,
) -> None:
    """Compare a model's gradients with differences.

    Runs the model in double on random inputs, without Dropout and with the statistics of the
    batch, and compares the slope of every trainable parameter along random directions with a
    central difference. Exits with 1 if an error is above the bound.
    """
    from onnxtrain.cli.console import say

    against = _differences(model, loss, seed, size)
    results = [against.check(name, samples) for name in against.names]
    results.sort(key=lambda one: one.error, reverse=True)
    _show(results)
    worst = results[0]
    if worst.error > bound:
        _refuse(results, bound)
    say(f"right: the worst error is {worst.error:.1e} in '{worst.name}', the bound {bound:g}")


def _differences(path: pathlib.Path, loss: str | None, seed: int, size: int) -> Differences:
    """The model in the form that is trained, in double, ready to be compared."""
    from onnxtrain.cli.differences import Differences
    from onnxtrain.cli.doubles import in_double
    from onnxtrain.graph.load import load_model
    from onnxtrain.training.build import working_copy
    from onnxtrain.transforms.mode import EvaluationForm, TrainingForm
    from onnxtrain.transforms.parameters import decide
    from onnxtrain.transforms.training_graph import parameters_to_inputs
    from onnxtrain.transforms.write_back import weight_names

    original = load_model(path)
    working = working_copy(original)
    _keep_outputs(working, loss)
    known = weight_names(original)
    trained = [d.name for d in decide(working, known=known) if d.trained]
    EvaluationForm()(working)
    TrainingForm()(working)
    in_double(working)
    values = {name: working.graph.initializers[name].const_value for name in trained}
    parameters = {name: t.numpy().copy() for name, t in values.items() if t is not None}
    parameters_to_inputs(working, parameters)
    return Differences(working, parameters, seed, size)


def _keep_outputs(model: ir.Model, loss: str | None) -> None:
    """Return what is differentiated, and nothing else."""
    from onnxtrain.errors import LossError
    from onnxtrain.gradients.engine import can_carry_gradient
    from onnxtrain.transforms.training_graph import set_outputs

    graph = model.graph
    if loss is not None:
        set_outputs(graph, [loss])
    names = [str(value.name) for value in graph.outputs if can_carry_gradient(value)]
    if not names:
        shown = ", ".join(repr(value.name) for value in graph.outputs)
        raise LossError(f"{shown} cannot be differentiated: no floating point tensor")
    set_outputs(graph, list(dict.fromkeys(names)))


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
        f"  difference  {worst.by_difference:.9g}"
    )
    raise typer.Exit(1)
