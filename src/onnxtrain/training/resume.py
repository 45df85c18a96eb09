"""The trainer's own checkpoint: parameters, optimizer state, random state, position."""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from onnxtrain.errors import CheckpointError
from onnxtrain.formats.native import read_native, write_native
from onnxtrain.kernels.dtypes import array_of, tensor_of

if TYPE_CHECKING:
    from onnxtrain.training.trainer import Trainer

_PARAMETER = "param/"
_MOMENT = "optim/"
_NUMBERS: dict[str, type[int] | type[float]] = {
    "step": int,
    "learning_rate": float,
    "initial_learning_rate": float,
}
_SCALE = "loss_scale/"
_CHECKSUM = "crc32"
_TOLD_CHECKSUM = "manifest_crc32"
"""Checksums of the tensors, and of all that stands beside them."""
_OPTIMIZER = "optimizer"
LORA = "lora"
"""Rank, factor and layers of adapters, without which a checkpoint of them could not be merged."""
_GENERATORS = {"rng/step": "rng", "rng/host": "rng_host"}

Path = str | os.PathLike[str]
Arrays = Mapping[str, np.ndarray[Any, Any]]


def write(trainer: Trainer, path: Path, extra: dict[str, Any]) -> None:
    """Write a checkpoint from which training goes on as if nothing had happened."""
    shares = trainer.shares
    live = {**_live(trainer), **_scale(trainer)}
    tensors = {key: array_of(tensor) for key, tensor in live.items()}
    for key, generator in _generators(trainer).items():
        state = generator.get_state()
        tensors[key] = array_of(state if shares is None else shares.gathered(state))
    if shares is not None and not shares.first:
        return
    numbers = {key: getattr(trainer.optimizer.state, key) for key in _NUMBERS}
    numbers["step"] = trainer.optimizer.steps_taken
    manifest: dict[str, Any] = {**numbers, "extra": extra, _CHECKSUM: _checksum(tensors)}
    manifest[_OPTIMIZER] = trainer.optimizer.kind
    if trainer.lora is not None:
        manifest[LORA] = dataclasses.asdict(trainer.lora)
    manifest[_TOLD_CHECKSUM] = _told_checksum(manifest)
    write_native(path, tensors, manifest)


def read(trainer: Trainer, path: Path) -> dict[str, Any]:
    """Load a checkpoint into a trainer of the same model; nothing changes if it does not fit.

    Raises:
        CheckpointError: if it cannot be read, or belongs to another model or optimizer.
    """
    tensors, manifest = read_native(path)
    if manifest.get(_CHECKSUM) not in (None, _checksum(tensors)):
        raise _damaged(path)
    live = _live(trainer)
    if why := _misfit(live, tensors):
        raise CheckpointError(f"checkpoint '{os.fspath(path)}' {why}")
    made, own = manifest.get(_OPTIMIZER), trainer.optimizer.kind
    if made not in (None, own):
        raise CheckpointError(
            f"checkpoint '{os.fspath(path)}' was made with another optimizer: {made or 'none'}, "
            f"not {own or 'that of the trainer'}"
        )
    numbers, extra = _numbers(path, manifest), manifest.get("extra")
    generators = _generators(trainer)
    if lost := [key for key in generators if key not in tensors]:
        raise CheckpointError(f"checkpoint '{os.fspath(path)}' is damaged: it has no '{lost[0]}'")
    if manifest.get(_TOLD_CHECKSUM) not in (None, _told_checksum(manifest)):
        raise _damaged(path)
    with torch.no_grad():
        for key, tensor in live.items():
            tensor.copy_(tensor_of(tensors[key]))
        for key, tensor in _scale(trainer).items():
            if key in tensors:
                tensor.copy_(tensor_of(tensors[key]))
    for key, number in numbers.items():
        setattr(trainer.optimizer.state, key, number)
    if trainer.module.scaling is not None:
        trainer.module.scaling.skipped.zero_()
    place = 0 if trainer.shares is None else trainer.shares.place
    for key, generator in generators.items():
        _go_on(generator, np.atleast_2d(tensors[key]), place)
    return dict(extra) if isinstance(extra, dict) else {}


def _go_on(generator: torch.Generator, states: np.ndarray[Any, Any], place: int) -> None:
    """Draw what the process of a place would have drawn next; one that is new begins anew."""
    # A generator of another kind of device has a state of another size.
    if states.shape[1] != generator.get_state().numel():
        return
    if place < len(states):
        generator.set_state(tensor_of(states[place]))
        return
    told = zlib.crc32(np.ascontiguousarray(states[0]).data)
    generator.manual_seed(int(np.random.SeedSequence([told, place]).generate_state(1)[0]))


def _checksum(tensors: Arrays) -> int:
    """CRC-32 of all values, in the order of their names."""
    crc = 0
    for key in sorted(tensors):
        crc = zlib.crc32(np.ascontiguousarray(tensors[key]).reshape(-1).view(np.uint8).data, crc)
    return crc


def _told_checksum(manifest: Mapping[str, Any]) -> int:
    """CRC-32 of what is told beside the values, as JSON gives it back."""
    told = {key: value for key, value in manifest.items() if key != _TOLD_CHECKSUM}
    as_read = json.loads(json.dumps(told, default=str))
    return zlib.crc32(json.dumps(as_read, sort_keys=True).encode())


def _damaged(path: Path) -> CheckpointError:
    return CheckpointError(
        f"checkpoint '{os.fspath(path)}' is damaged: its values are not those that were "
        "written\n  continue from another checkpoint, or start anew"
    )


def _live(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Tensors that training changes, by their names in the checkpoint."""
    parameters = trainer.state.parameters
    live = {f"{_PARAMETER}{name}": parameters[name].tensor for name in trainer.mutable}
    for name, moments in trainer.optimizer.state.moments.items():
        live.update({f"{_MOMENT}{name}/{key}": tensor for key, tensor in moments.items()})
    return live


def _scale(trainer: Trainer) -> dict[str, torch.Tensor]:
    """The loss scale, which a checkpoint made without one leaves as it is."""
    scaling = trainer.module.scaling
    return {} if scaling is None else {f"{_SCALE}{k}": t for k, t in scaling.state().items()}


def _generators(trainer: Trainer) -> dict[str, torch.Generator]:
    program = trainer.module.runner(training=True).program
    return {key: getattr(program, name) for key, name in _GENERATORS.items()}


def _misfit(live: Mapping[str, torch.Tensor], saved: Arrays) -> str | None:
    """Why a checkpoint does not belong to a trainer, or None if it does."""
    for prefix, complaint in (
        (_PARAMETER, "belongs to another model"),
        (_MOMENT, "was made with another optimizer"),
    ):
        own = {key.removeprefix(prefix) for key in live if key.startswith(prefix)}
        found = {key.removeprefix(prefix) for key in saved if key.startswith(prefix)}
        if more := sorted(found - own):
            return f"{complaint}: it has {_shown(more)} that the trainer has not"
        if less := sorted(own - found):
            return f"{complaint}: it lacks {_shown(less)}"
    for key, tensor in live.items():
        given = tensor_of(saved[key])
        if given.shape != tensor.shape or given.dtype != tensor.dtype:
            return (
                f"belongs to another model: '{key.partition('/')[2]}' is {_described(given)} in "
                f"it, {_described(tensor)} in the model"
            )
    return None


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(map(repr, names[:4])) + more


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _numbers(path: Path, manifest: Mapping[str, Any]) -> dict[str, float]:
    try:
        return {key: kind(manifest[key]) for key, kind in _NUMBERS.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint '{os.fspath(path)}' is damaged: step or learning rate are missing"
        ) from error
