"""``python -m onnxtrain.demo``: ONNX file in, trained ONNX file out, checked in onnxruntime."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from onnxtrain.cli.console import fail
from onnxtrain.cli.device import checked_device
from onnxtrain.errors import OnnxTrainError

WANTED = 0.97
"""Share of the held-out digits that must be right."""


def main(
    out: Annotated[pathlib.Path, typer.Option(help="Folder for what is written.")] = pathlib.Path(
        "demo-out"
    ),
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 12,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda.  [default: cuda if there]")
    ] = None,
) -> None:
    """Train a small CNN on scikit-learn's digits."""
    try:
        import torch

        from onnxtrain.demo.run import run

        # Tensors this small gain nothing from threads, and lose much when the cores are busy.
        torch.set_num_threads(1)
        done = run(out, epochs, checked_device(device))
    except ModuleNotFoundError as error:
        fail(f"the demo needs {error.name}\n  pip install 'onnxtrain[demo]'")
        raise typer.Exit(1) from None
    except OnnxTrainError as error:
        fail(str(error))
        raise typer.Exit(1) from None
    typer.echo(
        f"trained in {done.seconds:.1f} s on {done.device}\n"
        f"held-out accuracy  {done.accuracy:.2%} of {done.held_out} images\n"
        f"onnxruntime        {done.identical} of {done.held_out} predictions identical, "
        f"logits differ by at most {done.distance:.1e}\n"
        f"wrote              {', '.join(map(str, done.files))}"
    )
    if done.accuracy < WANTED or done.identical < done.held_out:
        fail(f"expected an accuracy of {WANTED:.0%} and identical predictions")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
