"""The arguments and options of ``onnxtrain fit``, each with its help."""

from __future__ import annotations

import enum
import pathlib
from typing import Annotated

import typer

from onnxtrain.cli.config import load

DEFAULT_LR = 1e-3


class BatchNormMode(str, enum.Enum):
    """What BatchNormalization does while the model trains."""

    train = "train"
    freeze = "freeze"


class Schedule(str, enum.Enum):
    """How the learning rate goes on after the warm-up."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"
    polynomial = "polynomial"


class Missing(str, enum.Enum):
    """What happens to samples that lack a value."""

    refuse = "refuse"
    drop = "drop"
    keep = "keep"


class PrecisionName(str, enum.Enum):
    """What a model computes in."""

    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class OrNone(str, enum.Enum):
    """A word of which one stands for nothing."""

    @property
    def word(self) -> str | None:
        """The word, None for that one."""
        return None if self.value == "none" else str(self.value)


class RecomputeWay(OrNone):
    """What the backward pass computes again."""

    none = "none"
    cheap = "cheap"
    layers = "layers"


class Codec(OrNone):
    """In how many bits values wait for the backward pass."""

    none = "none"
    exact = "exact"
    pack16 = "pack16"
    msfp15 = "msfp15"
    pack8 = "pack8"


class Keep(str, enum.Enum):
    """Which weights are written."""

    last = "last"
    best = "best"


Model = Annotated[pathlib.Path, typer.Argument(metavar="MODEL", help="The ONNX model to train.")]
Config = Annotated[
    pathlib.Path | None,
    typer.Option(
        callback=load,
        is_eager=True,
        help="YAML or JSON file with options by name (and 'model'); flags win over it.",
    ),
]
Data = Annotated[
    str,
    typer.Option(
        help="A .csv, .jsonl, .npz, .npy or .parquet file, a folder of them, a folder of images "
        "with one folder a class, or module:function.",
    ),
]
Loss = Annotated[
    str,
    typer.Option(
        help="cross_entropy, token_cross_entropy, next_token, mse, bce, l1 and others by name, or "
        "module:function (an onnxblock or a torch function).",
    ),
]
Output = Annotated[
    list[str] | None,
    typer.Option(help="Output of the model that the loss takes (repeat).  [default: the first]"),
]
Optimizer = Annotated[str, typer.Option(help="adamw, sgd and others by name.")]
LearningRate = Annotated[
    float | None, typer.Option(min=0.0, help=f"Learning rate.  [default: {DEFAULT_LR}]")
]
LearningSchedule = Annotated[Schedule, typer.Option(help="How the learning rate goes on.")]
Warmup = Annotated[int, typer.Option(min=0, help="Updates in which the rate rises from zero.")]
FinalLr = Annotated[
    float,
    typer.Option(min=0.0, max=1.0, help="Share of the rate that the schedule goes down to."),
]
Epochs = Annotated[int, typer.Option(min=1, help="Passes over the data.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Updates to make, instead of --epochs.")]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Samples a step.  [default: the model's, or 32]")
]
Accumulate = Annotated[
    int, typer.Option(min=1, help="Batches an update; their gradients are averaged.")
]
Trainable = Annotated[
    list[str] | None,
    typer.Option(help="Parameter, or a pattern such as 'head.*' (repeat).  [default: weights]"),
]
Freeze = Annotated[
    list[str] | None,
    typer.Option(help="Parameter or pattern that stays as it is (repeat)."),
]
Last = Annotated[int | None, typer.Option(min=1, help="Train the last N layers only.")]
Lora = Annotated[
    str | None,
    typer.Option(
        metavar="RANK",
        help="Train adapters: a rank, or rank=8,alpha=16,dropout=0.1,targets=*query*|*value*.",
    ),
]
Adapter = Annotated[
    pathlib.Path | None,
    typer.Option(help="Go on from the adapters of a file; --lora is then not needed."),
]
BiasesOnly = Annotated[bool, typer.Option("--biases-only", help="Train biases only.")]
Map = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        help="INPUT=ARRAY: which array feeds it (repeat); of a table also x=a,b,c or x=f*.",
    ),
]
Ignore = Annotated[
    list[str] | None, typer.Option(help="Array or column of the data to leave out (repeat).")
]
MissingValues = Annotated[
    Missing, typer.Option(help="Refuse samples that lack a value, drop them, or keep them as NaN.")
]
FirstLabel = Annotated[
    int, typer.Option(help="Number of the first class in the data, where they do not start at 0.")
]
ImageSize = Annotated[
    str | None,
    typer.Option(metavar="HxW", help="Size of images, 224 or 224x192.  [default: the model's]"),
]
ImageStretch = Annotated[
    bool, typer.Option("--image-stretch", help="Stretch images instead of cutting out the middle.")
]
ImageMean = Annotated[
    str, typer.Option(help="Subtracted from values of 0 to 1: a number, one a channel, imagenet.")
]
ImageStd = Annotated[str, typer.Option(help="Divides them afterwards, in the same form.")]
ValData = Annotated[
    str | None, typer.Option(help="Data for validation, of the same kinds as --data.")
]
ValSplit = Annotated[
    float, typer.Option(min=0.0, max=0.9, help="Share of the samples held out for validation.")
]
ValEvery = Annotated[
    int, typer.Option(min=0, help="Updates between two validations (0: after every epoch).")
]
Metric = Annotated[
    list[str] | None,
    typer.Option(help="accuracy, f1, mae, rmse or perplexity (repeat).  [default: by the loss]"),
]
Monitor = Annotated[str, typer.Option(help="Figure that tells which weights are the best.")]
Patience = Annotated[
    int | None,
    typer.Option(min=1, help="Stop after this many validations without a better figure."),
]
KeepWhich = Annotated[
    Keep | None,
    typer.Option(help="Write the last or the best weights.  [default: best with --patience]"),
]
WeightDecay = Annotated[float, typer.Option(min=0.0, help="Decay of the weights.")]
ClipGradNorm = Annotated[
    float | None, typer.Option(min=0.0, help="Largest norm of all gradients together.")
]
BatchNorm = Annotated[
    BatchNormMode, typer.Option(help="Use the statistics of the batch, or the saved ones.")
]
Dropout = Annotated[bool, typer.Option(help="Let Dropout drop values in training.")]
Precision = Annotated[PrecisionName, typer.Option(help="Compute in 16 bits; weights stay float32.")]
Recompute = Annotated[
    RecomputeWay, typer.Option(help="Compute values again instead of keeping them: less memory.")
]
Compress = Annotated[
    Codec,
    typer.Option(help="Keep truth values and signs in a bit each, numbers rounded or as they are."),
]
Processes = Annotated[
    int | None,
    typer.Option(min=1, help="Share every batch among N processes, each on a GPU if there are."),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1.  [default: cuda if there]")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of all that is random.")]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="Bit-identical results from run to run.")
]
Out = Annotated[pathlib.Path, typer.Option(help="The trained model, or FILE.onnx_adapter.")]
Checkpoint = Annotated[
    pathlib.Path | None,
    typer.Option(help="File to continue from later.  [default: OUT with .ckpt, if stopped]"),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint.")]
CheckpointEvery = Annotated[
    int, typer.Option(min=0, help="Steps between two checkpoints (0: only when stopped).")
]
Log = Annotated[pathlib.Path | None, typer.Option(help="File for figures, a JSON object a line.")]
LogEvery = Annotated[int, typer.Option(min=1, help="Updates between two records of the loss.")]
TensorBoard = Annotated[
    pathlib.Path | None, typer.Option("--tensorboard", help="Folder for TensorBoard's events.")
]
Report = Annotated[
    pathlib.Path | None,
    typer.Option(help="HTML page with curves, slowest operators, memory and settings."),
]
Plot = Annotated[
    pathlib.Path | None, typer.Option(help="Picture of the curves (.png, .svg, .pdf).")
]
