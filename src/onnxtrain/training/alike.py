"""What processes that train one model must have in common, as numbers that they can compare."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import torch

from onnxtrain.kernels.dtypes import array_of

if TYPE_CHECKING:
    from onnxtrain.training.trainer import Trainer

SEEN = 4096
"""Elements of a tensor that are looked at."""


def facts(trainer: Trainer, model: ir.Model, drawn: Collection[str]) -> dict[str, int]:
    """A checksum of each fact that must be the same in all processes, by its name.

    The values of what is trained are not among them: the first process gives its own to all.

    Args:
        trainer: What trains.
        model: Its model.
        drawn: Tensors whose first values are random.
    """
    constants = model.graph.initializers.items()
    chosen = {*trainer.mutable, *drawn}
    fixed = {name: v.const_value for name, v in constants if name not in chosen}
    optimizer = trainer.optimizer
    state = optimizer.state
    moments = sorted((f"{n} {k}", t) for n, own in state.moments.items() for k, t in own.items())
    return {
        "what is trained": _checksum(
            f"{name} {trainer.state.parameters[name].tensor.dtype} "
            f"{list(trainer.state.parameters[name].tensor.shape)}"
            for name in trainer.mutable
        ),
        "the nodes of the model": _checksum(f"{n.op_type} {n.name}" for n in model.graph),
        "weights that are not trained": _checksum(_shown(fixed.items())),
        "the optimizer": _checksum([optimizer.kind]),
        "the state of the optimizer": _checksum(
            [str(optimizer.steps_taken), str(trainer.loss_scale), *_shown(moments)]
        ),
        "the learning rate": _checksum([str(trainer.lr)]),
    }


def _shown(tensors: Iterable[tuple[str, Any]]) -> Iterable[str]:
    """Name, shape and some values of tensors."""
    for name, tensor in tensors:
        if tensor is None or getattr(tensor, "dtype", None) == ir.DataType.STRING:
            continue
        if isinstance(tensor, torch.Tensor):
            values = array_of(tensor.reshape(-1)[:SEEN])
        else:
            values = tensor.numpy().reshape(-1)[:SEEN]
        crc = zlib.crc32(np.ascontiguousarray(values).view(np.uint8).data)
        yield f"{name} {list(tensor.shape)} {crc}"


def _checksum(texts: Iterable[str]) -> int:
    return zlib.crc32("\n".join(texts).encode())
