"""What is done to a training graph before its step is planned, in order; files have none of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import onnx_ir as ir

from onnxtrain.transforms.backward import join
from onnxtrain.transforms.compress import compress
from onnxtrain.transforms.recompute import recompute


@dataclasses.dataclass(frozen=True)
class Waiting:
    """How values wait for the backward pass.

    Attributes:
        recompute: What is computed again instead, one of ``recompute.WAYS``; None for nothing.
        compress: In which code, one of ``compress.CODECS``; None for none.
    """

    recompute: str | None = None
    compress: str | None = None


AS_THEY_ARE = Waiting()


@dataclasses.dataclass(frozen=True)
class Done:
    """How many nodes are computed twice, and how many values are encoded."""

    twice: int
    encoded: int


def make_lean(
    model: ir.Model,
    *,
    on_gpu: bool,
    compiled: bool,
    waiting: Waiting = AS_THEY_ARE,
    trained: Collection[str] | None = None,
) -> Done:
    """Join what forward and backward share and keep less between them, in place.

    Args:
        model: The training model.
        on_gpu: Whether it is to run on a GPU.
        compiled: Whether kernels are generated for chains of operators.
        waiting: How values wait for the backward pass.
        trained: Inputs that have gradients; None takes those whose gradients are added up.

    Raises:
        OptionError: if values cannot wait so.
    """
    join(model, on_gpu=on_gpu, compiled=compiled)
    return wait(model, waiting, trained)


def wait(model: ir.Model, waiting: Waiting, trained: Collection[str] | None = None) -> Done:
    """Keep less between forward and backward pass, in place; the last thing that is done.

    Raises:
        OptionError: if values cannot wait so.
    """
    return Done(
        twice=recompute(model, waiting.recompute, trained),
        encoded=compress(model, waiting.compress),
    )
