"""Write the parameters of a training block to a checkpoint, and read them back into a model."""

from __future__ import annotations

import os
from collections.abc import Iterable

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
    """
    trainable, frozen = parameters
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
    """
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
