"""Files of a run: what would only fail, or destroy something, after hours is refused at once."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

from onnxtrain.cli.fitting.adapters import targets
from onnxtrain.cli.near import nearest
from onnxtrain.cli.usage import DATA_SUFFIXES
from onnxtrain.errors import ModelError, OnnxTrainError

if TYPE_CHECKING:
    from onnxtrain.cli.fitting.asked import Run

PICTURES = (".png", ".svg", ".pdf", ".jpg", ".webp")
_EXAMPLES = {
    "--out": "trained.onnx",
    "--checkpoint": "run.ckpt",
    "--log": "run.jsonl",
    "--report": "run.html",
    "--plot": "curves.png",
}
"""Files to name in a message about an option."""


def check(asked: Run) -> None:
    """Refuse files that are not there, cannot be written, or would be lost.

    Raises:
        OnnxTrainError: if there is one, with what to type instead.
    """
    _check_model(asked.model)
    _check_checkpoint(asked)
    written = [(name, file) for name, file in _written(asked) if file is not None]
    # the model is only read where something could be replaced
    read = _read_files(asked) if any(file.is_file() for _, file in written) else []
    for name, file in written:
        _check_target(file, read, _EXAMPLES[name])
    _check_apart(asked)
    if asked.plot is not None and asked.plot.suffix.lower() not in PICTURES:
        raise OnnxTrainError(
            f"cannot draw '{asked.plot}': its kind is not known\n"
            f"  give  --plot {asked.plot.with_suffix('.png')}; have {', '.join(PICTURES)}"
        )


def _check_model(path: pathlib.Path) -> None:
    if path.is_dir():
        raise ModelError(f"'{path}' is a folder, not a model{_models(path, path.name)}")
    if not path.exists():
        raise ModelError(f"there is no file '{path}'{_models(path.parent, path.name)}")
    if path.suffix.lower() in DATA_SUFFIXES:
        raise ModelError(
            f"'{path}' is not an ONNX model but data\n"
            f"  give  onnxtrain fit MODEL.onnx --data {path}"
        )
    if path.suffix.lower() in (".pt", ".pth", ".safetensors", ".h5", ".keras", ".pb", ".tflite"):
        raise ModelError(
            f"'{path}' is not an ONNX model\n"
            "  export it first, say with torch.onnx.export, and give the .onnx file"
        )


def _models(folder: pathlib.Path, name: str) -> str:
    """What could have been meant: a model of a folder."""
    if not folder.is_dir():
        return f"\n  there is no folder '{folder}' either"
    found = sorted(p.name for p in folder.iterdir() if p.suffix.lower() == ".onnx")
    close = nearest(name, found)
    if close is not None or len(found) == 1:
        return f"\n  did you mean  {folder / (close or found[0])}"
    return f"\n  '{folder}' has  {', '.join(found[:8]) or 'no .onnx file'}"


def _check_checkpoint(asked: Run) -> None:
    path = asked.checkpoint_path
    if asked.resume and not path.exists():
        raise OnnxTrainError(
            f"there is no checkpoint '{path}' to continue from\n"
            "  leave out --resume to start, or name the file with --checkpoint"
        )
    if not asked.resume and path.exists() and not path.is_dir():
        raise OnnxTrainError(
            f"checkpoint '{path}' is there already\n"
            "  add --resume to continue from it, remove it to start anew, or name another file "
            "with --checkpoint"
        )


def _written(asked: Run) -> list[tuple[str, pathlib.Path | None]]:
    """Files that a run writes, with the options that name them."""
    return [
        *(("--out", file) for file in targets(asked.out)),
        ("--checkpoint", asked.checkpoint_path),
        ("--log", asked.log),
        ("--report", asked.report),
        ("--plot", asked.plot),
    ]


def _check_target(file: pathlib.Path, read: Sequence[pathlib.Path], example: str) -> None:
    folder = file.absolute().parent
    if file.is_dir():
        raise OnnxTrainError(
            f"cannot write '{file}': it is a folder\n  name a file, say {file / example}"
        )
    if not folder.is_dir():
        raise OnnxTrainError(
            f"cannot write '{file}': there is no folder '{file.parent}'\n  mkdir -p {file.parent}"
        )
    if file.exists() and not file.is_file():
        raise OnnxTrainError(
            f"cannot write '{file}': it is a device, not a file\n  name a file, say {example}"
        )
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OnnxTrainError(
            f"cannot write '{file}': nothing can be written into '{file.parent}' "
            f"({error.strerror})\n  name a file in another folder"
        ) from None
    if file.exists() and any(map(file.samefile, read)):
        raise OnnxTrainError(
            f"'{file}' would be overwritten, but the run reads it\n"
            f"  name another file, say {file.with_stem(file.stem + '-trained')}"
        )


def _check_apart(asked: Run) -> None:
    """Two files of a run under one name: the second would replace the first."""
    named = _written(asked)
    if asked.keeps_best:
        named.append(("the best checkpoint", asked.best_path))
    seen: dict[pathlib.Path, str] = {}
    for option, file in named:
        if file is None:
            continue
        other = seen.setdefault(file.resolve(), option)
        if other != option:
            raise OnnxTrainError(
                f"'{file}' would be overwritten: {other} and {option} are the same file\n"
                "  give each of them a name of its own"
            )


def _read_files(asked: Run) -> list[pathlib.Path]:
    """Data and the model, with the files that it has its weights in."""
    from onnxtrain.graph.loading.external import data_files
    from onnxtrain.graph.loading.load import load_model

    named = [asked.model, *(pathlib.Path(p) for p in (asked.data, asked.val_data) if p)]
    return [*(path for path in named if path.exists()), *data_files(load_model(asked.model))]
