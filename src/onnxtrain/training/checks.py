"""What a module checks when it is made: that its state belongs to its models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from onnxtrain.errors import CheckpointError, OptionError
from onnxtrain.kernels.dtypes import from_torch
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.training.checkpoint import CheckpointState
from onnxtrain.transforms.training_graph import BUFFER_SUFFIX
from onnxtrain.types import dtype_name


def check_kinds(state: Any, options: Any) -> None:
    """Refuse arguments of a module that are of another kind.

    Raises:
        OptionError: if one is.
    """
    if not isinstance(state, CheckpointState):
        raise OptionError(
            f"the state of a module is a CheckpointState, not {state!r}\n"
            "  give  CheckpointState.load_checkpoint(path)"
        )
    if options is not None and not isinstance(options, SessionOptions):
        raise OptionError(
            f"session_options are SessionOptions of onnxtrain or None, not {options!r}\n"
            "  give  onnxtrain.SessionOptions()"
        )


def check_state(state: CheckpointState, model: ir.Model) -> None:
    """The parameters must be those of the training model.

    Raises:
        CheckpointError: if one is missing, too many, or of another type or shape.
    """
    names = [str(v.name) for v in model.graph.inputs]
    buffers = {n.removesuffix(BUFFER_SUFFIX) for n in names if n.endswith(BUFFER_SUFFIX)}
    trained = {p.name for p in state.parameters.in_order(trainable=True)}
    if missing := sorted(buffers - trained):
        _refuse(f"it has no trainable parameter {', '.join(map(repr, missing[:8]))}")
    if unknown := sorted(trained - buffers):
        _refuse(f"the model does not train its {', '.join(map(repr, unknown[:8]))}")
    check_declared(state, model, "model")


def check_declared(state: CheckpointState, model: ir.Model, which: str) -> None:
    """The parameters must have the types and shapes that a model declares.

    Raises:
        CheckpointError: if one has another.
    """
    inputs = {str(v.name): v for v in model.graph.inputs}
    for parameter in state.parameters.in_order():
        declared = inputs.get(parameter.name)
        if declared is None:
            continue
        dtype = from_torch(parameter.tensor.dtype)
        if declared.dtype is not None and declared.dtype != dtype:
            _refuse(
                f"parameter '{parameter.name}' is {dtype_name(dtype)}, "
                f"the {which} declares {dtype_name(declared.dtype)}"
            )
        shape = list(parameter.tensor.shape)
        if not state.parameters.nominal and not _fits(shape, declared.shape):
            _refuse(
                f"parameter '{parameter.name}' has shape {shape}, "
                f"the {which} declares [{', '.join(map(str, declared.shape or ()))}]"
            )


def _fits(shape: Sequence[int], declared: ir.Shape | None) -> bool:
    if declared is None:
        return True
    return len(shape) == len(declared) and all(
        not isinstance(want, int) or want == have
        for want, have in zip(declared, shape, strict=True)
    )


def _refuse(why: str) -> None:
    raise CheckpointError(f"the checkpoint belongs to another model: {why}")
