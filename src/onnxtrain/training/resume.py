"""The trainer's own checkpoint: parameters, optimizer state, random state, position."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from onnxtrain.artifacts.native import read_native, write_native
from onnxtrain.errors import CheckpointError
from onnxtrain.kernels.dtypes import array_of, tensor_of

if TYPE_CHECKING:
    from onnxtrain.training.trainer import Trainer


def write(trainer: Trainer, path: str | os.PathLike[str], extra: dict[str, Any]) -> None:
    """Write a checkpoint from which training goes on as if nothing had happened."""
    tensors = {
        f"param/{name}": array_of(trainer.state.parameters[name].tensor) for name in trainer.mutable
    }
    optimizer = trainer.optimizer.state
    for name, moments in optimizer.moments.items():
        tensors.update({f"optim/{name}/{key}": array_of(t) for key, t in moments.items()})
    program = trainer.module.runner(training=True).program
    tensors["rng/step"] = array_of(program.rng.get_state())
    tensors["rng/host"] = array_of(program.rng_host.get_state())
    manifest: dict[str, Any] = {
        "model": fingerprint(trainer),
        "step": optimizer.step,
        "learning_rate": optimizer.learning_rate,
        "initial_learning_rate": optimizer.initial_learning_rate,
        "extra": extra,
    }
    write_native(path, tensors, manifest)


def read(trainer: Trainer, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Load a checkpoint into a trainer of the same model; nothing changes if it does not fit."""
    tensors, manifest = read_native(path)
    _check(trainer, path, tensors, manifest)
    with torch.no_grad():
        for name in trainer.mutable:
            trainer.state.parameters[name].tensor.copy_(tensor_of(tensors[f"param/{name}"]))
        optimizer = trainer.optimizer.state
        for name, moments in optimizer.moments.items():
            for key, tensor in moments.items():
                tensor.copy_(tensor_of(tensors[f"optim/{name}/{key}"]))
    optimizer.step = int(manifest["step"])  # type: ignore[arg-type]
    optimizer.learning_rate = float(manifest["learning_rate"])  # type: ignore[arg-type]
    optimizer.initial_learning_rate = float(manifest["initial_learning_rate"])  # type: ignore[arg-type]
    program = trainer.module.runner(training=True).program
    if tensors["rng/step"].size == program.rng.get_state().numel():
        program.rng.set_state(tensor_of(tensors["rng/step"].copy()))
    program.rng_host.set_state(tensor_of(tensors["rng/host"].copy()))
    extra: dict[str, Any] = manifest.get("extra") or {}  # type: ignore[assignment]
    return extra


def fingerprint(trainer: Trainer) -> str:
    """Names, types and shapes of what is trained: what a checkpoint must agree with."""
    described = [
        [name, str(p.tensor.dtype), list(p.tensor.shape)]
        for name in sorted(trainer.mutable)
        for p in [trainer.state.parameters[name]]
    ]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _check(
    trainer: Trainer,
    path: str | os.PathLike[str],
    tensors: dict[str, np.ndarray[Any, Any]],
    manifest: dict[str, Any],
) -> None:
    if manifest.get("model") == fingerprint(trainer):
        return
    saved = {key.removeprefix("param/") for key in tensors if key.startswith("param/")}
    own = set(trainer.mutable)
    more = (
        f"it has {sorted(saved - own)[:4]} that the model has not"
        if saved - own
        else (f"it lacks {sorted(own - saved)[:4]}" if own - saved else "a type or shape differs")
    )
    raise CheckpointError(f"checkpoint '{os.fspath(path)}' belongs to another model: {more}")
