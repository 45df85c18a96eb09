"""``onnxtrain fit``: train a model on data."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import tempfile
import warnings
from typing import TYPE_CHECKING, NoReturn

import typer

from onnxtrain.cli.fitting import adapters, paths
from onnxtrain.cli.fitting import fit_options as options
from onnxtrain.cli.fitting.stop import CLOSED
from onnxtrain.errors import SaveError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onnxtrain.cli.fitting.asked import Run
    from onnxtrain.cli.fitting.feeding import Feeding
    from onnxtrain.cli.fitting.loop import Loop
    from onnxtrain.cli.fitting.ranks import Ranks


def fit(
    context: typer.Context,
    model: options.Model,
    data: options.Data,
    loss: options.Loss,
    output: options.Output = None,
    optimizer: options.Optimizer = "adamw",
    lr: options.LearningRate = None,
    schedule: options.LearningSchedule = options.Schedule.constant,
    warmup: options.Warmup = 0,
    final_lr: options.FinalLr = 0.0,
    epochs: options.Epochs = 10,
    steps: options.Steps = None,
    batch_size: options.BatchSize = None,
    accumulate: options.Accumulate = 1,
    trainable: options.Trainable = None,
    freeze: options.Freeze = None,
    last: options.Last = None,
    biases_only: options.BiasesOnly = False,
    lora: options.Lora = None,
    adapter: options.Adapter = None,
    mapping: options.Map = None,
    ignore: options.Ignore = None,
    missing: options.MissingValues = options.Missing.refuse,
    first_label: options.FirstLabel = 0,
    image_size: options.ImageSize = None,
    image_stretch: options.ImageStretch = False,
    image_mean: options.ImageMean = "0",
    image_std: options.ImageStd = "1",
    val_data: options.ValData = None,
    val_split: options.ValSplit = 0.0,
    val_every: options.ValEvery = 0,
    metric: options.Metric = None,
    monitor: options.Monitor = "val_loss",
    patience: options.Patience = None,
    keep: options.KeepWhich = None,
    weight_decay: options.WeightDecay = 0.0,
    clip_grad_norm: options.ClipGradNorm = None,
    batch_norm: options.BatchNorm = options.BatchNormMode.train,
    dropout: options.Dropout = True,
    precision: options.Precision = options.PrecisionName.fp32,
    recompute: options.Recompute = options.RecomputeWay.none,
    compress: options.Compress = options.Codec.none,
    device: options.Device = None,
    processes: options.Processes = None,
    seed: options.Seed = 0,
    deterministic: options.Deterministic = False,
    out: options.Out = pathlib.Path("trained.onnx"),
    checkpoint: options.Checkpoint = None,
    resume: options.Resume = False,
    checkpoint_every: options.CheckpointEvery = 0,
    log: options.Log = None,
    log_every: options.LogEvery = 10,
    tensorboard: options.TensorBoard = None,
    report: options.Report = None,
    plot: options.Plot = None,
    config: options.Config = None,
) -> None:
    """Train a model and write the trained model.

    Ctrl-C (or SIGTERM, SIGHUP) saves a checkpoint and stops; the same command with --resume goes on
    from there exactly as if it had not been stopped.
    """
    given = dict(locals())
    from onnxtrain.cli.config import one_of
    from onnxtrain.cli.fitting import processes as started
    from onnxtrain.cli.fitting.asked import asked
    from onnxtrain.cli.fitting.ranks import connected

    for name in ("context", "processes", "config"):
        del given[name]  # the values of a file are the defaults of the other options by now
    one_of(context, given, "epochs", "steps")
    if processes is not None and started.wanted(processes):
        started.check(asked(given), processes)
        words = context.find_root().command.words  # type: ignore[attr-defined]
        raise typer.Exit(started.start(processes, words))
    with connected(device) as (ranks, given["device"]):
        run(ranks.together(lambda: asked(given)), ranks)


def run(asked: Run, ranks: Ranks) -> None:
    """Prepare, train, and write the result; a stopped run leaves a checkpoint."""
    from onnxtrain.cli.fitting.preparing import check_alike
    from onnxtrain.cli.fitting.progress import display

    loop, fed = ranks.together(lambda: _prepared(asked, ranks))
    told = ranks.gather(loop.settings)
    ranks.together(lambda: check_alike(told))
    shown = display(loop.total, loop.position, ranks.first)
    if ranks.first:
        with shown.writing():
            _announce(asked, loop, fed)
    try:
        received = loop.run(shown)
    except Exception:
        if ranks.first and (left := _left(asked, loop)):
            typer.echo(left, err=True)
        raise
    if received is not None:
        _stopped(loop, received)
    if asked.checkpoint is not None:
        loop.save()
    if ranks.first:
        _finish(asked, loop)


def _prepared(asked: Run, ranks: Ranks) -> tuple[Loop, Feeding]:
    """The loop and its data, where the run begins."""
    from onnxtrain.cli.fitting.preparing import prepare

    paths.check(asked)
    with _notes(ranks.first):
        loop, fed = prepare(asked, ranks)
    if asked.resume:
        loop.resume()
        if asked.lr is not None:
            loop.trainer.lr = asked.lr
    return loop, fed


@contextlib.contextmanager
def _notes(shown: bool) -> Iterator[None]:
    """With: warnings are notes, without the place in the code; of one process only."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: (  # type: ignore[assignment]
            typer.echo(f"note: {message}", err=True) if shown else None
        )
        yield


def _stopped(loop: Loop, received: signal.Signals) -> NoReturn:
    """Tell how to go on, and exit as the signal asks."""
    if loop.ranks.first:
        typer.echo(
            f"stopped by {received.name} after step {loop.position} of {loop.total}; "
            f"saved {loop.checkpoint}\n"
            "run the same command with --resume to go on from there",
            err=received == CLOSED,
        )
    raise typer.Exit(128 + received)


def _left(asked: Run, loop: Loop) -> str | None:
    """Which weights of a run that failed there are, and how to get at them."""
    watch = loop.watch
    if loop.best is not None and watch is not None and watch.best is not None:
        found, place = f"the best weights so far, of step {watch.step},", loop.best
    elif loop.every and loop.checkpoint.exists():
        found, place = "the weights of the last checkpoint", loop.checkpoint
    else:
        return None
    return (
        f"{found} are in '{place}'\n"
        f"  write them with  onnxtrain export {place} {asked.model} --out FILE.onnx"
    )


def _finish(asked: Run, loop: Loop) -> None:
    """Write the trained model and what was asked for beside it.

    What is told comes last: a reader that is gone must not keep a file from being written.
    """
    told, watch = [], loop.watch
    if watch is not None and watch.best is not None:
        if loop.position < loop.total:
            told.append(
                f"stopped after step {loop.position} of {loop.total}: no better {watch.monitor} "
                f"in {watch.bad} validations"
            )
        if loop.best is not None:
            loop.trainer.resume(loop.best)
            told.append(f"best {watch.monitor} {watch.best:.4g}, after step {watch.step}")
    try:
        written = adapters.save(loop.trainer, asked.out)
    except SaveError as error:
        raise SaveError(f"{error}\n{_rescued(asked, loop)}") from error
    try:
        written += _write_about(asked, loop)
    finally:
        if asked.checkpoint is None:
            loop.checkpoint.unlink(missing_ok=True)
            asked.best_path.unlink(missing_ok=True)
        for text in (*told, *(f"wrote {file}" for file in written)):
            typer.echo(text)


def _rescued(asked: Run, loop: Loop) -> str:
    """Where the weights of a run went whose model could not be written."""
    name = loop.checkpoint.name
    loop.trainer.shares = None  # other processes have ended by now
    for place in (loop.checkpoint, pathlib.Path(name), pathlib.Path(tempfile.gettempdir()) / name):
        with contextlib.suppress(SaveError):
            loop.save(place)
            return (
                f"  nothing is lost: the weights are in '{place}'\n"
                f"  write them with  onnxtrain export {place} {asked.model} --out FILE.onnx"
            )
    return "  the weights could not be saved anywhere else either"


def _write_about(asked: Run, loop: Loop) -> list[pathlib.Path]:
    """Write the page and the picture of a run; gives which."""
    from onnxtrain.cli.fitting import report

    written = []
    if asked.report is not None:
        report.write(asked.report, asked, loop)
        written.append(asked.report)
    if asked.plot is not None:
        report.draw(asked.plot, loop)
        written.append(asked.plot)
    return written


def _announce(asked: Run, loop: Loop, fed: Feeding) -> None:
    trained = [d for d in loop.trainer.decisions if d.trained]
    order = loop.batches.order
    typer.echo(
        f"{asked.model}: {len(trained)} of {len(loop.trainer.decisions)} tensors "
        f"({sum(d.elements for d in trained):,} elements) train on {loop.trainer.device}"
        + (f" in {loop.ranks.size} processes" if loop.ranks.size > 1 else "")
    )
    if loop.trainer.lora is not None:
        typer.echo(adapters.told(loop.trainer))
    for name, words in fed.classes.items():
        shown = ", ".join(f"{number} {word}" for number, word in enumerate(words[:12]))
        more = f" and {len(words) - 12} more" if len(words) > 12 else ""
        typer.echo(f"classes of '{name}': {shown}{more}")
    if fed.validation is not None:
        typer.echo(f"held out: {fed.validation.order.samples:,} samples")
    typer.echo(
        f"{asked.data}: {order.samples:,} samples, {order.steps_per_epoch:,} steps an epoch "
        f"of {order.batch_size} samples"
        + (f"; continuing after step {loop.position:,}" if loop.position else "")
    )
    if loop.note is not None:
        typer.echo(f"note: {loop.note}")
    if loop.ended:
        typer.echo(f"note: all {loop.total:,} steps were made already; give more --epochs to go on")
