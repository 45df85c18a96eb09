"""Write models to files, atomically, with external data when they are large."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxtrain.files.atomic import atomic_write, atomic_write_pair
from onnxtrain.formats.arrays import raw_bytes
from onnxtrain.graph.loading import whole
from onnxtrain.graph.loading.external import external_tensors
from onnxtrain.graph.loading.load import Source
from onnxtrain.transforms.inference_form import for_inference
from onnxtrain.transforms.mode import EvaluationForm
from onnxtrain.transforms.patch import patched
from onnxtrain.transforms.write_back import write_back
from onnxtrain.types import DataType

EXTERNAL_BYTES = 1800 * 2**20
"""From this size on weights go to a file of their own, since a protobuf ends at 2 GiB."""
INSIDE_BYTES = 1024
"""Smaller tensors stay inside: shapes, axes and scales that readers must know for shapes."""


def save_model(
    model: ir.Model, path: str | os.PathLike[str], *, external_bytes: int | None = None
) -> None:
    """Write a model; a crash at any moment leaves the old file or the new one.

    Args:
        model: The model; external data is loaded into it, but for the weights of a large one.
        path: The file to write or replace.
        external_bytes: From how many bytes of weights on they go to ``<file>.data``;
            None for ``EXTERNAL_BYTES``.

    Raises:
        SaveError: if the file could not be written.
    """
    limit = EXTERNAL_BYTES if external_bytes is None else external_bytes
    weights = [v for v in model.graph.initializers.values() if v.const_value is not None]
    sizes = [v.const_value.nbytes for v in weights if v.const_value is not None]
    if sum(sizes) < limit:
        _take_inside(model)
        atomic_write(path, whole.written(model).SerializeToString())
        return
    least = min(INSIDE_BYTES, limit)
    outside = [v for v, n in zip(weights, sizes, strict=True) if n >= least and not _is_text(v)]
    _take_inside(model, but=outside)
    _save_external(model, pathlib.Path(path), outside)


def save_trained(
    source: Source,
    values: Mapping[str, npt.NDArray[Any]],
    path: str | os.PathLike[str],
) -> None:
    """Write a model with new values of some weights; everything else stays as it was read.

    Only nodes that were in training form (Dropout, BatchNormalization) are in inference form.

    Raises:
        ParameterError: if the model has no such weight.
        SaveError: if the file could not be written.
    """
    weights = [v.const_value for v in source.model.graph.initializers.values()]
    size = sum(tensor.nbytes for tensor in weights if tensor is not None)
    if source.proto is None or size >= EXTERNAL_BYTES:
        save_model(trained_model(source, values), path)
    else:
        proto = patched(source.proto, values, source.files)
        for_inference(proto)
        atomic_write(path, proto.SerializeToString())


def trained_model(source: Source, values: Mapping[str, npt.NDArray[Any]]) -> ir.Model:
    """A copy of a model with new values of some weights, in inference form.

    Raises:
        ParameterError: if the model has no such weight.
    """
    model = write_back(source.model.clone(), values)
    EvaluationForm(saved=True)(model)
    return model


def _is_text(value: ir.Value) -> bool:
    """Strings cannot lie outside."""
    return value.const_value is not None and value.const_value.dtype == DataType.STRING


def _take_inside(model: ir.Model, but: Collection[ir.Value] = ()) -> None:
    """Load the external data of a model, of its functions and bodies too, but for some weights."""
    kept = {id(value.const_value) for value in but}
    for tensor, put in external_tensors(model):
        if id(tensor) not in kept:
            put(_loaded(tensor))


def _loaded(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    """A copy in memory; other copies of the model go on reading the file as it was."""
    return ir.Tensor(
        tensor.numpy().copy(),
        tensor.dtype,
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


def _bytes_of(tensor: ir.TensorProtocol) -> bytes | memoryview:
    """The bytes of a tensor as a file holds them; not copied if they lie so in memory."""
    if tensor.dtype.bitwidth < 8 or sys.byteorder != "little":
        return tensor.tobytes()
    return raw_bytes(np.asarray(tensor.numpy(), order="C"))


def _save_external(model: ir.Model, path: pathlib.Path, weights: list[ir.Value]) -> None:
    """Weights one after the other in ``<file>.data``, aligned as readers that map files want."""
    offset = 0
    tensors = {}
    parts: list[tuple[int, ir.TensorProtocol]] = []
    for value in weights:
        tensor = value.const_value
        assert tensor is not None
        offset += -offset % 4096
        parts.append((offset, tensor))
        tensors[value] = ir.ExternalTensor(
            f"{path.name}.data",
            offset,
            tensor.nbytes,
            tensor.dtype,
            shape=ir.Shape(tensor.numpy().shape),
            name=value.name or "",
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
            base_dir=str(path.parent),
        )
        offset += tensor.nbytes
    for value, external in tensors.items():
        value.const_value = external
    try:
        proto = whole.written(model).SerializeToString()
    finally:
        for (_, tensor), value in zip(parts, weights, strict=True):
            value.const_value = tensor

    def write(stream: object) -> None:
        position = 0
        for start, tensor in parts:
            stream.write(b"\0" * (start - position))  # type: ignore[attr-defined]
            stream.write(_bytes_of(tensor))  # type: ignore[attr-defined]
            position = start + tensor.nbytes

    atomic_write_pair(path, proto, write)
