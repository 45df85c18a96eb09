"""Command lines that cannot be understood: what is wrong, and what to type instead."""

from __future__ import annotations

import itertools
import pathlib
import shlex
from collections.abc import Sequence
from typing import Any

import typer

from onnxtrain.cli.near import nearest

VERBS = {
    "convert": "export",
    "evaluate": "fit",
    "finetune": "fit",
    "fine-tune": "fit",
    "learn": "fit",
    "run": "fit",
    "show": "info",
    "train": "fit",
    "version": "--version",
}
"""What other programs call a verb, and what it is called here."""
UsageError: Any = typer.BadParameter.__base__
"""What the parser raises, wherever it takes its classes from."""
OTHER_NAMES = {
    "--batch": "--batch-size N",
    "--classes": "--map labels=COLUMN",
    "--criterion": "--loss NAME",
    "--cuda": "--device cuda",
    "--dataset": "--data FILE",
    "--epoch": "--epochs N",
    "--gpu": "--device cuda",
    "--input": "--data FILE",
    "--label": "--map labels=COLUMN",
    "--labels": "--map labels=COLUMN",
    "--learning-rate": "--lr NUMBER",
    "--model": "the model without a flag: onnxtrain fit MODEL",
    "--save": "--out FILE",
    "--target": "--map target=COLUMN",
    "--train": "--data FILE",
    "--train-data": "--data FILE",
    "--validation-data": "--val-data FILE",
    "--validation-split": "--val-split 0.1",
    "-o": "--out FILE",
}
"""Options that other programs have, and how they are called here."""
EXAMPLES = {
    "accumulate": "4",
    "batch_size": "32",
    "checkpoint_every": "1000",
    "clip_grad_norm": "1.0",
    "epochs": "10",
    "final_lr": "0.1",
    "last": "2",
    "lr": "0.001",
    "patience": "3",
    "processes": "2",
    "seed": "0",
    "steps": "1000",
    "val_split": "0.1",
    "warmup": "100",
    "weight_decay": "0.01",
}
"""A usual value of an option."""
FILES = {"CHECKPOINT": "run.ckpt", "A": "before.onnx", "B": "after.onnx"}
"""Examples of files that are no models to train, by their names in the help."""
DATA_SUFFIXES = (".csv", ".tsv", ".npz", ".npy", ".parquet", ".jsonl")


def explained(error: Any, args: Sequence[str]) -> str:
    """The text of an error of the parser, with what to type instead.

    Args:
        error: What the parser raised.
        args: The words of the command line.
    """
    option = getattr(error, "option_name", None)
    parameter = getattr(error, "param", None)
    if option is not None and not option.startswith("-"):
        option = f"--{option}"
    if option is not None and type(error).__name__ == "NoSuchOption":
        return f"there is no option '{option}'\n{_instead(error, option)}"
    if parameter is not None and type(error).__name__ == "MissingParameter":
        return _missing(error, parameter, args)
    if parameter is not None:
        return _bad_value(error, parameter)
    text = error.format_message()
    return f"{text[:1].lower()}{text[1:].rstrip('.')}{_stray(args)}"


def unknown_verb(error: Any, args: Sequence[str], known: Sequence[str]) -> str:
    """The text of an error about the verb itself, with what to type instead."""
    word = next((arg for arg in args if not arg.startswith("-")), None)
    if word is None or word in known:
        return explained(error, args)
    if word.endswith(".onnx"):
        line = f"onnxtrain info {shlex.join(args)}" if len(args) == 1 else _with_verb("fit", args)
        return f"there is no verb before '{word}'\n  give  {line}"
    near = nearest(word, [*known, *VERBS], 0.6)
    meant = VERBS.get(near or "", near)
    cure = f"have  {', '.join(known)}" if meant is None else f"did you mean  onnxtrain {meant}"
    return f"there is no verb '{word}'\n  {cure}"


def _with_verb(verb: str, args: Sequence[str]) -> str:
    return f"onnxtrain {verb} {shlex.join(args)}"


def _options(error: Any) -> list[str]:
    command = error.ctx.command if error.ctx is not None else None
    parameters = command.params if command is not None else []
    return [
        flag for one in parameters for flag in (*one.opts, *one.secondary_opts) if flag[0] == "-"
    ]


def _instead(error: Any, option: str) -> str:
    known = _options(error)
    other = OTHER_NAMES.get(option)
    if other is not None and (other.split()[0] in known or other.startswith("the ")):
        return f"  give  {other}"
    close = nearest(option, known, 0.6)
    if close is not None:
        return f"  did you mean  {close}"
    return f"  '{error.ctx.command_path} --help' lists all options"


def _missing(error: Any, parameter: Any, args: Sequence[str]) -> str:
    name = str(parameter.name)
    models = [word for word in args if word.endswith(".onnx")]
    if name == "loss":
        return f"there is no --loss to train by\n{_losses(models)}"
    if name == "data":
        found = next((w for w in args if w.lower().endswith(DATA_SUFFIXES)), "train.csv")
        return (
            f"there is no --data to train on\n  add  --data {found}\n"
            "  a .csv, .jsonl, .npz or .parquet file, a folder of them, or a folder of images with "
            "one folder a class"
        )
    is_option = str(parameter.opts[0]).startswith("-")
    shown = parameter.opts[0] if is_option else parameter.metavar or name.upper()
    usage = error.ctx.command_path if error.ctx is not None else "onnxtrain"
    example = " ".join([str(usage), *_files(error)])
    if str(usage).endswith("fit"):
        example += " --data train.csv --loss cross_entropy"
    return f"there is no {shown}\n  give  {example}\n  '{usage} --help' tells more"


def _files(error: Any) -> list[str]:
    """What a verb is given without a flag, as an example."""
    parameters = error.ctx.command.params if error.ctx is not None else []
    named = [one for one in parameters if not str(one.opts[0]).startswith("-")]
    return [FILES.get(str(one.metavar), "model.onnx") for one in named if one.required]


def _losses(models: Sequence[str]) -> str:
    """The loss that a model suggests, if it can be read."""
    from onnxtrain.errors import OnnxTrainError

    general = "  add  --loss cross_entropy  for classes, or  --loss mse  for numbers"
    if not models or not pathlib.Path(models[0]).is_file():
        return general
    from onnxtrain.cli.advice import suggested_loss
    from onnxtrain.graph.loading.load import load_model
    from onnxtrain.training.build import working_copy

    try:
        said = suggested_loss(working_copy(load_model(models[0])))
        first = said.split()[0].rstrip(",")
        flag = "" if first == "none:" else f"  add  --loss {first}\n"
        return f"{flag}  '{models[0]}' suggests  {said}"
    except OnnxTrainError:
        return general


def _bad_value(error: Any, parameter: Any) -> str:
    """The parser's own complaint, and a value that it takes."""
    shown = str(parameter.opts[0])
    reason = str(error.message).removeprefix("Value error, ").rstrip(".")
    lines = [f"{shown}: {reason[:1].lower()}{reason[1:]}"]
    words = reason.split("'")[1::2]
    close = nearest(words[0], words[1:]) if len(words) > 1 else None
    example = close or EXAMPLES.get(str(parameter.name))
    if example is not None:
        lines.append(f"  give  {shown} {example}, say")
    source = getattr(error.ctx, "default_map", None) or {}
    if str(parameter.name) in source:
        lines.append(f"  the file of --config has  {source[str(parameter.name)]!r}  for it")
    return "\n".join(lines)


def _stray(args: Sequence[str]) -> str:
    """A cure where a file stands alone that an option should have."""
    for before, word in itertools.pairwise(args):
        if word.lower().endswith(DATA_SUFFIXES) and not before.startswith("--"):
            return f"\n  give  --data {word}"
    return ""
