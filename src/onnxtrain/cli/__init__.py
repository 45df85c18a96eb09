"""The command line: ``onnxtrain VERB``, one file a verb; heavy imports wait until they are used."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxtrain.cli.check import check
from onnxtrain.cli.diff import diff
from onnxtrain.cli.env import env
from onnxtrain.cli.export import export
from onnxtrain.cli.fit import fit
from onnxtrain.cli.gradcheck import gradcheck
from onnxtrain.cli.info import info
from onnxtrain.cli.ops import ops
from onnxtrain.cli.plan import plan
from onnxtrain.cli.verbs import DEBUG, Verbs

app = typer.Typer(
    name="onnxtrain",
    cls=Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (fit, info, diff, ops, plan, check, gradcheck, export, env):
    app.command()(verb)


def _print_version(wanted: bool) -> None:
    if wanted:
        from onnxtrain import __version__

        typer.echo(f"onnxtrain {__version__}")
        raise typer.Exit()


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option(DEBUG, help="Show the whole trace of an error (at any place).")
    ] = False,
) -> None:
    """Train ONNX models: an ONNX file in, a trained ONNX file out."""
