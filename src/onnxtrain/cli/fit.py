"""``onnxtrain fit``: train a model on a file of data."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any

import typer

from onnxtrain.cli import fit_options as options
from onnxtrain.errors import OnnxTrainError

if TYPE_CHECKING:
    from onnxtrain.cli.loop import Loop
    from onnxtrain.data import Batches


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything that the user asked for."""

    model: pathlib.Path
    data: pathlib.Path
    loss: str
    optimizer: str
    lr: float | None
    epochs: int
    steps: int | None
    batch_size: int | None
    trainable: list[str]
    chosen: dict[str, str]
    val_split: float
    weight_decay: float
    clip_grad_norm: float | None
    batch_norm: str
    dropout: bool
    device: str | None
    seed: int
    deterministic: bool
    out: pathlib.Path
    checkpoint: pathlib.Path | None
    resume: bool
    checkpoint_every: int

    @property
    def checkpoint_path(self) -> pathlib.Path:
        """Where checkpoints go, named or not."""
        return self.checkpoint or self.out.with_suffix(".ckpt")


def fit(
    model: options.Model,
    data: options.Data,
    loss: options.Loss,
    optimizer: options.Optimizer = "adamw",
    lr: options.LearningRate = None,
    epochs: options.Epochs = 10,
    steps: options.Steps = None,
    batch_size: options.BatchSize = None,
    trainable: options.Trainable = None,
    mapping: options.Map = None,
    val_split: options.ValSplit = 0.0,
    weight_decay: options.WeightDecay = 0.0,
    clip_grad_norm: options.ClipGradNorm = None,
    batch_norm: options.BatchNorm = options.BatchNormMode.train,
    dropout: options.Dropout = True,
    device: options.Device = None,
    seed: options.Seed = 0,
    deterministic: options.Deterministic = False,
    out: options.Out = pathlib.Path("trained.onnx"),
    checkpoint: options.Checkpoint = None,
    resume: options.Resume = False,
    checkpoint_every: options.CheckpointEvery = 0,
) -> None:
    """Train a model and write the trained model.

    Ctrl-C (or SIGTERM) saves a checkpoint and stops; the same command with --resume goes on from
    there exactly as if it had not been stopped.
    """
    asked = Run(
        model=model,
        data=data,
        loss=loss,
        optimizer=optimizer,
        lr=lr,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        trainable=trainable or [],
        chosen=_pairs(mapping or []),
        val_split=val_split,
        weight_decay=weight_decay,
        clip_grad_norm=clip_grad_norm,
        batch_norm=batch_norm.value,
        dropout=dropout,
        device=device,
        seed=seed,
        deterministic=deterministic,
        out=out,
        checkpoint=checkpoint,
        resume=resume,
        checkpoint_every=checkpoint_every,
    )
    run(asked)


def run(asked: Run) -> None:
    """Prepare, train, and write the result; a stopped run leaves a checkpoint."""
    from onnxtrain.cli.progress import display

    _check_files(asked)
    loop = prepare(asked)
    if asked.resume:
        loop.resume()
        if asked.lr is not None:
            loop.trainer.lr = asked.lr
    _announce(asked, loop)
    received = loop.run(display(loop.total, loop.position))
    if received is not None:
        typer.echo(
            f"stopped by {received.name} after step {loop.position} of {loop.total}; "
            f"saved {loop.checkpoint}\n"
            "run the same command with --resume to go on from there"
        )
        raise typer.Exit(128 + received)
    loop.trainer.save(asked.out)
    typer.echo(f"wrote {asked.out}")
    if asked.checkpoint is not None:
        loop.save()
    else:
        loop.checkpoint.unlink(missing_ok=True)


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = dict(text.partition("=")[::2] for text in texts)
    if bad := [name for name, array in pairs.items() if not name or not array]:
        raise OnnxTrainError(f"--map takes INPUT=ARRAY, not '{bad[0]}'")
    return pairs


def _check_files(asked: Run) -> None:
    """Refuse early what would only fail, or destroy something, after hours of training."""
    path = asked.checkpoint_path
    if asked.resume and not path.exists():
        raise OnnxTrainError(
            f"there is no checkpoint '{path}' to continue from\n"
            "  leave out --resume to start, or name the file with --checkpoint"
        )
    if not asked.resume and path.exists():
        raise OnnxTrainError(
            f"checkpoint '{path}' is there already\n"
            "  add --resume to continue from it, remove it to start anew, or name another file "
            "with --checkpoint"
        )
    for file in (asked.out, path):
        if not file.absolute().parent.is_dir():
            raise OnnxTrainError(f"cannot write '{file}': there is no folder '{file.parent}'")


def prepare(asked: Run) -> Loop:
    """The loop that does what was asked for."""
    from onnxtrain.cli.device import checked_device
    from onnxtrain.cli.feeding import digest, feeding, figures
    from onnxtrain.cli.loop import Loop
    from onnxtrain.training.trainer import Trainer

    trainer = Trainer(
        asked.model,
        loss=asked.loss,
        optimizer=asked.optimizer,
        lr=options.DEFAULT_LR if asked.lr is None else asked.lr,
        trainable=asked.trainable or "auto",
        device=checked_device(asked.device),
        weight_decay=asked.weight_decay,
        clip_grad_norm=asked.clip_grad_norm,
        batch_norm=asked.batch_norm,
        dropout=asked.dropout,
        seed=asked.seed,
        deterministic=asked.deterministic,
    )
    fed = feeding(trainer, asked)
    per_epoch = fed.training.order.steps_per_epoch
    return Loop(
        trainer,
        fed.training,
        total=asked.steps or asked.epochs * per_epoch,
        checkpoint=asked.checkpoint_path,
        every=asked.checkpoint_every,
        settings=_settings(asked, fed.training, digest(fed)),
        validate=lambda: figures(trainer, fed.validation, asked.loss),
    )


def _settings(asked: Run, batches: Batches, data: str) -> dict[str, Any]:
    """What decides the course of a training besides the checkpoint itself."""
    return {
        "loss": asked.loss,
        "optimizer": asked.optimizer,
        "weight decay": asked.weight_decay,
        "gradient norm": asked.clip_grad_norm,
        "batch norm": asked.batch_norm,
        "dropout": asked.dropout,
        "batch size": batches.order.batch_size,
        "validation split": asked.val_split,
        "seed": asked.seed,
        "data": data,
    }


def _announce(asked: Run, loop: Loop) -> None:
    trained = [d for d in loop.trainer.decisions if d.trained]
    order = loop.batches.order
    typer.echo(
        f"{asked.model}: {len(trained)} of {len(loop.trainer.decisions)} tensors "
        f"({sum(d.elements for d in trained):,} elements) train on {loop.trainer.device}"
    )
    typer.echo(
        f"{asked.data}: {order.samples:,} samples, {order.steps_per_epoch:,} steps an epoch "
        f"of {order.batch_size} samples"
        + (f"; continuing after step {loop.position:,}" if loop.position else "")
    )
