"""Everything that a user can ask ``fit`` for, checked as far as it can be without a model."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from typing import Any

from onnxtrain.cli.fitting.adapters import SUFFIX as ADAPTER_SUFFIX
from onnxtrain.errors import OnnxTrainError

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@dataclasses.dataclass(frozen=True)
class Run:
    """What was asked for; the names are those of the options."""

    model: pathlib.Path
    data: str
    loss: str
    output: list[str]
    optimizer: str
    lr: float | None
    schedule: str
    warmup: int
    final_lr: float
    epochs: int
    steps: int | None
    batch_size: int | None
    accumulate: int
    trainable: list[str]
    freeze: list[str]
    last: int | None
    biases_only: bool
    lora: str | None
    adapter: pathlib.Path | None
    chosen: dict[str, str]
    ignore: list[str]
    missing: str
    first_label: int
    image_size: tuple[int, int] | None
    image_stretch: bool
    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]
    val_data: str | None
    val_split: float
    val_every: int
    metric: list[str]
    monitor: str
    patience: int | None
    keep: str | None
    weight_decay: float
    clip_grad_norm: float | None
    batch_norm: str
    dropout: bool
    precision: str
    recompute: str | None
    compress: str | None
    device: str | None
    seed: int
    deterministic: bool
    out: pathlib.Path
    checkpoint: pathlib.Path | None
    resume: bool
    checkpoint_every: int
    log: pathlib.Path | None
    log_every: int
    tensorboard: pathlib.Path | None
    report: pathlib.Path | None
    plot: pathlib.Path | None

    @property
    def checkpoint_path(self) -> pathlib.Path:
        """Where checkpoints go, named or not."""
        return self.checkpoint or self.out.with_suffix(".ckpt")

    @property
    def best_path(self) -> pathlib.Path:
        """Where the best state so far goes."""
        return self.checkpoint_path.with_suffix(".best.ckpt")

    @property
    def validates(self) -> bool:
        """Whether there is data to judge by."""
        return bool(self.val_split or self.val_data)

    @property
    def keeps_best(self) -> bool:
        """Whether the best weights are written in the end, not the last ones."""
        return self.keep == "best" or (self.keep is None and self.patience is not None)


def asked(options: Mapping[str, Any]) -> Run:
    """What the options ask for.

    Raises:
        OnnxTrainError: if an option cannot be understood or contradicts another.
    """
    given = dict(options)
    for name in ("schedule", "keep", "batch_norm", "missing", "precision"):
        given[name] = getattr(given[name], "value", given[name])
    for name in ("recompute", "compress"):
        given[name] = given[name].word
    for name in ("trainable", "freeze", "metric", "output", "ignore"):
        given[name] = list(given[name] or [])
    given["chosen"] = _pairs(given.pop("mapping") or [])
    given["image_size"] = _size(given["image_size"])
    for name in ("mean", "std"):
        given[f"image_{name}"] = _numbers(f"image_{name}", given[f"image_{name}"], IMAGENET[name])
    run = Run(**given)
    _check(run)
    return run


def _check(run: Run) -> None:
    if run.val_data and run.val_split:
        raise OnnxTrainError("give --val-data or --val-split, not both")
    if not run.validates:
        for option, used in (
            ("--patience", run.patience is not None),
            ("--keep best", run.keep == "best"),
            ("--metric", bool(run.metric)),
            ("--monitor", run.monitor != "val_loss"),
            ("--val-every", run.val_every > 0),
        ):
            if used:
                raise OnnxTrainError(
                    f"{option} needs data to judge by\n  add --val-split 0.1, or --val-data FILE"
                )
    for option, file, example in (
        ("--out", run.out, "trained.onnx"),
        ("--checkpoint", run.checkpoint, "run.ckpt"),
    ):
        if file is not None and not file.name:
            raise OnnxTrainError(
                f"{option} takes a file, '{file}' is a folder\n  give  {option} {example}, say"
            )
    if run.out.suffix == ADAPTER_SUFFIX and run.lora is None and run.adapter is None:
        raise OnnxTrainError(
            f"cannot write '{run.out}': no adapters are trained\n"
            "  add --lora 8, or name an .onnx file for the whole model"
        )
    if run.lora is not None or run.adapter is not None:
        _check_adapters(run)
    if run.schedule == "constant" and run.final_lr:
        raise OnnxTrainError(
            "--final-lr needs a schedule that goes down\n  add --schedule cosine (or linear)"
        )


def _check_adapters(run: Run) -> None:
    """Options that choose weights say nothing about adapters."""
    for option, used in (("--last", run.last is not None), ("--biases-only", run.biases_only)):
        if used:
            raise OnnxTrainError(
                f"{option} chooses among weights, and adapters are trained instead of them\n"
                "  choose layers with  --lora rank=8,targets=*query*|*value*  or leave it out"
            )
    if run.adapter is not None and not run.adapter.exists():
        raise OnnxTrainError(
            f"there is no file '{run.adapter}' for --adapter\n"
            "  give a file that fit wrote with --out FILE.onnx_adapter, or begin with --lora 8"
        )


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for name, _, array in (text.partition("=") for text in texts):
        if pairs.setdefault(name, array) != array:
            raise OnnxTrainError(
                f"--map gives input '{name}' {pairs[name]} and {array}\n"
                f"  give one, or columns side by side as  --map {name}={pairs[name]},{array}"
            )
    if bad := [name for name, array in pairs.items() if not name or not array]:
        raise OnnxTrainError(
            f"--map takes INPUT=ARRAY, not '{bad[0]}'\n"
            "  give  --map labels=outcome, say; 'onnxtrain info MODEL' lists the inputs"
        )
    return pairs


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = str(text).lower().split("x")
    if len(parts) not in (1, 2) or not all(p.isdecimal() and int(p) for p in parts):
        raise OnnxTrainError(
            f"--image-size takes 224, or HEIGHTxWIDTH such as 224x192, not '{text}'"
        )
    return int(parts[0]), int(parts[-1])


def _numbers(name: str, text: str, imagenet: tuple[float, ...]) -> tuple[float, ...]:
    if text == "imagenet":
        return imagenet
    try:
        found = tuple(float(part) for part in str(text).split(","))
    except ValueError:
        found = (math.nan,)
    if not all(math.isfinite(number) and (number > 0 or "std" not in name) for number in found):
        option, above = name.replace("_", "-"), " above 0" if "std" in name else ""
        raise OnnxTrainError(
            f"--{option} takes 'imagenet' or numbers{above} such as 0.5 or 0.5,0.5,0.5, "
            f"not '{text}'"
        )
    return found
