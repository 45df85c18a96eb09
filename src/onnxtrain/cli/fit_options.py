"""The arguments and options of ``onnxtrain fit``, each with its help."""

from __future__ import annotations

import enum
import pathlib
from typing import Annotated

import typer

DEFAULT_LR = 1e-3


class BatchNormMode(str, enum.Enum):
    """What BatchNormalization does while the model trains."""

    train = "train"
    freeze = "freeze"


Model = Annotated[pathlib.Path, typer.Argument(metavar="MODEL", help="The ONNX model to train.")]
Data = Annotated[
    pathlib.Path,
    typer.Option(help="An .npz or .csv file, or a folder of them; arrays named like inputs."),
]
Loss = Annotated[str, typer.Option(help="cross_entropy, mse, bce or l1.")]
Optimizer = Annotated[str, typer.Option(help="adamw or sgd.")]
LearningRate = Annotated[
    float | None, typer.Option(min=0.0, help=f"Learning rate.  [default: {DEFAULT_LR}]")
]
Epochs = Annotated[int, typer.Option(min=1, help="Passes over the data.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Updates to make, instead of --epochs.")]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Samples a step.  [default: the model's, or 32]")
]
Trainable = Annotated[
    list[str] | None,
    typer.Option(help="Parameter, or a pattern such as 'head.*' (repeat).  [default: weights]"),
]
Map = Annotated[
    list[str] | None, typer.Option("--map", help="INPUT=ARRAY: which array feeds it (repeat).")
]
ValSplit = Annotated[
    float, typer.Option(min=0.0, max=0.9, help="Share of the samples held out for validation.")
]
WeightDecay = Annotated[float, typer.Option(min=0.0, help="Decay of adamw.")]
ClipGradNorm = Annotated[
    float | None, typer.Option(min=0.0, help="Largest norm of all gradients together.")
]
BatchNorm = Annotated[
    BatchNormMode, typer.Option(help="Use the statistics of the batch, or the saved ones.")
]
Dropout = Annotated[bool, typer.Option(help="Let Dropout drop values in training.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1.  [default: cuda if there]")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of all that is random.")]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="Bit-identical results from run to run.")
]
Out = Annotated[pathlib.Path, typer.Option(help="The trained model.")]
Checkpoint = Annotated[
    pathlib.Path | None,
    typer.Option(help="File to continue from later.  [default: OUT with .ckpt, if stopped]"),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint.")]
CheckpointEvery = Annotated[
    int, typer.Option(min=0, help="Steps between two checkpoints (0: only when stopped).")
]
