"""Write the parameters of a training block to a checkpoint, and read them back into a model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from onnxtrain.errors import CheckpointError
from onnxtrain.formats import odtc
from onnxtrain.onnxblock.onnxblock import Parameters


def save_checkpoint(
    parameters: Parameters,
    path_to_checkpoint: str | os.PathLike[str],
    nominal_checkpoint: bool = False,
) -> None:
    """Write (trainable, frozen) parameters to a checkpoint file.

    Args:
        parameters: such as ``TrainingBlock.parameters()`` gives.
        path_to_checkpoint: the file to write.
        nominal_checkpoint: whether to write names and types only, without values.

    Raises:
        TypeError: if it is not given two lists of tensors.
    """
    trainable, frozen = _lists(parameters)
    data = odtc.CheckpointData(
        trainable=_arrays(trainable), frozen=_arrays(frozen), nominal=nominal_checkpoint
    )
    odtc.write_checkpoint(path_to_checkpoint, data)


def load_checkpoint_to_model(
    path_to_checkpoint: str | os.PathLike[str], model: onnx.ModelProto
) -> None:
    """Overwrite the initializers of a model with the parameters of the same names.

    Raises:
        CheckpointError: if the checkpoint is nominal, or a parameter has another shape or type.
        TypeError: if it is not given a ``ModelProto``.
    """
    if not isinstance(model, onnx.ModelProto):
        raise TypeError(
            f"cannot load a checkpoint into a {type(model).__name__}\n"
            "  give an onnx.ModelProto, such as onnx.load(path), and save it afterwards"
        )
    data = odtc.read_checkpoint(path_to_checkpoint)
    if data.nominal:
        raise CheckpointError(
            f"checkpoint '{os.fspath(path_to_checkpoint)}' is nominal: it has no values\n"
            "  load the full checkpoint"
        )
    values = {**data.trainable, **data.frozen}
    targets = [tensor for tensor in model.graph.initializer if tensor.name in values]
    for tensor in targets:
        _check_fits(tensor, values[tensor.name])
    for tensor in targets:
        tensor.CopyFrom(onnx.numpy_helper.from_array(values[tensor.name], tensor.name))


def _lists(parameters: Any) -> list[list[onnx.TensorProto]]:
    """Trainable and frozen tensors of any two collections."""
    parts: list[list[Any]] = []
    with contextlib.suppress(TypeError):
        parts = [list(part) for part in parameters]
    if len(parts) == 2 and all(isinstance(t, onnx.TensorProto) for part in parts for t in part):
        return parts
    raise TypeError(
        "cannot save a checkpoint of what is no pair of lists of onnx.TensorProto\n"
        "  give (trainable, frozen), such as TrainingBlock.parameters() or "
        "(model.graph.initializer, [])"
    )


def _arrays(tensors: Iterable[onnx.TensorProto]) -> dict[str, npt.NDArray[np.generic]]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}


def _check_fits(tensor: onnx.TensorProto, value: npt.NDArray[np.generic]) -> None:
    dtype = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    if tuple(tensor.dims) != value.shape or tensor.data_type != dtype:
        raise CheckpointError(
            f"parameter '{tensor.name}' of the checkpoint does not fit the model\n"
            f"  checkpoint has {value.dtype}{list(value.shape)}, model has "
            f"{onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)}{list(tensor.dims)}"
        )
