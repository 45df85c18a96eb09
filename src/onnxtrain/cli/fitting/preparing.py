"""From what was asked for to a loop that does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnxtrain.cli.device import checked_device
from onnxtrain.cli.fitting import metrics
from onnxtrain.cli.fitting.adapters import lora_for
from onnxtrain.cli.fitting.asked import Run
from onnxtrain.cli.fitting.events import EventFile
from onnxtrain.cli.fitting.feeding import Feeding, digest, feeding
from onnxtrain.cli.fitting.fit_options import DEFAULT_LR
from onnxtrain.cli.fitting.loop import Loop
from onnxtrain.cli.fitting.losses import Goal, goal
from onnxtrain.cli.fitting.processes import check_share
from onnxtrain.cli.fitting.ranks import Ranks
from onnxtrain.cli.fitting.recording import JsonLines, Recorder
from onnxtrain.cli.fitting.watch import Watch
from onnxtrain.cli.near import nearest
from onnxtrain.errors import FeedError, OptionError
from onnxtrain.training import lr_scheduler
from onnxtrain.training.build import OPTIMIZERS
from onnxtrain.training.selection import Selection
from onnxtrain.training.trainer import Trainer
from onnxtrain.transforms.compress import EXACT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SCHEDULES: dict[str, Any] = {
    "constant": lr_scheduler.ConstantLRScheduler,
    "linear": lr_scheduler.LinearLRScheduler,
    "cosine": lr_scheduler.CosineLRScheduler,
    "polynomial": lr_scheduler.PolynomialLRScheduler,
}


def prepare(asked: Run, ranks: Ranks | None = None) -> tuple[Loop, Feeding]:
    """The loop that does what was asked for in the processes of a run, and its data."""
    ranks = ranks or Ranks()
    aim = goal(asked.loss)
    names = metrics.chosen(asked.metric, aim)
    _check_optimizer(asked.optimizer)
    trainer = trainer_of(asked, aim, ranks)
    fed = feeding(trainer, asked, aim)
    per_epoch = fed.training.order.steps_per_epoch
    total = asked.steps or asked.epochs * per_epoch
    held = fed.validation
    loop = Loop(
        trainer,
        fed.training,
        _size_at_a_time(asked, fed, ranks),
        total=total,
        checkpoint=asked.checkpoint_path,
        every=asked.checkpoint_every,
        settings=_settings(asked, fed, total),
        validate=None
        if held is None
        else lambda: metrics.measure(trainer, held, aim, names, ranks),
        judge_every=asked.val_every or per_epoch,
        schedule=_schedule(asked, trainer, total),
        watch=_watch(asked, names) if held is not None else None,
        best=asked.best_path if asked.keeps_best else None,
        recorders=_recorders(asked) if ranks.first else [],
        log_every=asked.log_every,
        ranks=ranks,
    )
    return loop, fed


def _size_at_a_time(asked: Run, fed: Feeding, ranks: Ranks) -> int:
    """Samples that pass through the model of one process at a time.

    Raises:
        OptionError: if a batch has too few samples for all processes.
    """
    unit = fed.training.order.unit
    check_share(fed.training.order.batch_size, unit, ranks.size)
    return fed.size if unit > 1 else -(-fed.size // ranks.size)


def _check_optimizer(name: str) -> None:
    if name not in OPTIMIZERS:
        close = nearest(name, OPTIMIZERS)
        raise OptionError(
            f"unknown optimizer '{name}'\n  have  {', '.join(OPTIMIZERS)}"
            + (f"\n  did you mean  --optimizer {close}" if close else "")
        )


def trainer_of(asked: Run, aim: Goal, ranks: Ranks) -> Trainer:
    """The trainer of a run."""
    trainer = Trainer(
        asked.model,
        loss=aim.loss,
        optimizer=asked.optimizer,
        lr=DEFAULT_LR if asked.lr is None else asked.lr,
        trainable=Selection(asked.trainable, asked.freeze, asked.last, asked.biases_only),
        device=checked_device(asked.device),
        outputs=asked.output or None,
        weight_decay=asked.weight_decay,
        clip_grad_norm=asked.clip_grad_norm,
        lora=lora_for(asked.lora, asked.adapter, asked.model),
        batch_norm=asked.batch_norm,
        dropout=asked.dropout,
        precision=asked.precision,
        recompute=asked.recompute,
        compress=asked.compress,
        seed=asked.seed,
        deterministic=asked.deterministic,
        groups=ranks.groups,
    )
    if asked.adapter is not None:
        trainer.load_adapter(asked.adapter)
    return trainer


def _watch(asked: Run, names: tuple[str, ...]) -> Watch:
    monitor = asked.monitor if asked.monitor.startswith("val_") else f"val_{asked.monitor}"
    known = ["val_loss", *(f"val_{name}" for name in names)]
    if monitor not in known:
        raise OptionError(
            f"there is no figure '{asked.monitor}' to watch\n"
            f"  have  {', '.join(f'--monitor {name}' for name in known)}"
        )
    return Watch(monitor, monitor.removeprefix("val_") in metrics.HIGHER, asked.patience)


def _schedule(
    asked: Run, trainer: Trainer, total: int
) -> Callable[[], lr_scheduler.LRScheduler] | None:
    """Makes the schedule once the trainer has the state that it starts from."""
    if asked.schedule == "constant" and not asked.warmup:
        return None
    if asked.warmup > total:
        raise OptionError(
            f"a warm-up of {asked.warmup} updates is longer than the training of {total}\n"
            f"  give --warmup {max(total // 10, 1)}, say, or more --epochs"
        )
    rate = DEFAULT_LR if asked.lr is None else asked.lr
    options = {"final_factor": asked.final_lr} if asked.final_lr else {}
    # A straight line that ends above zero is a polynomial of power one.
    straight = asked.schedule == "linear" and asked.final_lr > 0
    kind = SCHEDULES["polynomial" if straight else asked.schedule]
    return lambda: kind(trainer.optimizer, asked.warmup, total, rate, **options)


def _recorders(asked: Run) -> list[Recorder]:
    recorders: list[Recorder] = []
    if asked.log is not None:
        recorders.append(JsonLines(asked.log))
    if asked.tensorboard is not None:
        recorders.append(EventFile(asked.tensorboard))
    return recorders


def _settings(asked: Run, fed: Feeding, total: int) -> dict[str, Any]:
    """What decides the course of a training besides the checkpoint itself."""
    schedule = f"constant after {asked.warmup} of warm-up" if asked.warmup else "constant"
    if asked.schedule != "constant":
        schedule = f"{asked.schedule} over {total} updates, {asked.warmup} of warm-up"
        if asked.final_lr:
            schedule += f", down to {asked.final_lr}"
    return {
        "loss": asked.loss,
        "optimizer": asked.optimizer,
        "schedule": schedule,
        "weight decay": asked.weight_decay,
        "gradient norm": asked.clip_grad_norm,
        "batch norm": asked.batch_norm,
        "dropout": asked.dropout,
        **({} if asked.precision == "fp32" else {"precision": asked.precision}),
        **({} if asked.compress in (None, EXACT) else {"compress": asked.compress}),
        "batch size": fed.size,
        "accumulation": asked.accumulate,
        "validation data": digest(fed.validation),
        "seed": asked.seed,
        "data": digest(fed.training),
        **_chosen(asked),
        **({} if asked.lora is None else {"lora": asked.lora}),
        **({} if asked.adapter is None else {"adapter": str(asked.adapter)}),
    }


def check_alike(settings: Sequence[Mapping[str, Any]]) -> None:
    """Refuse processes that would share batches of different trainings.

    Args:
        settings: What decides the training of each process.

    Raises:
        FeedError: if they are not the same everywhere.
    """
    for rank, own in enumerate(settings):
        if differing := [name for name, value in settings[0].items() if own.get(name) != value]:
            raise FeedError(
                f"process {rank} and process 0 do not train the same: they differ in "
                f"{', '.join(differing)}\n"
                "  all processes must have the same options and read the same data; a function "
                "that draws random numbers needs a fixed seed"
            )


def _chosen(asked: Run) -> dict[str, str]:
    """The choice of parameters, where one was made."""
    options = {
        "--trainable": asked.trainable,
        "--freeze": asked.freeze,
        "--last": asked.last,
        "--biases-only": asked.biases_only,
    }
    told = [f"{name} {value}" for name, value in options.items() if value]
    return {"trained": ", ".join(told)} if told else {}
