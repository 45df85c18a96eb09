"""Element types of torch and ONNX."""

from __future__ import annotations

import torch

from onnxtrain.kernels.dtypes import from_torch, to_torch
from onnxtrain.types import DataType

_SCALAR_TYPES = {
    "byte": torch.uint8,
    "char": torch.int8,
    "short": torch.int16,
    "int": torch.int32,
    "long": torch.int64,
    "half": torch.float16,
    "float": torch.float32,
    "double": torch.float64,
    "bool": torch.bool,
    "bfloat16": torch.bfloat16,
    "complexfloat": torch.complex64,
    "complexdouble": torch.complex128,
}


def pytorch_scalar_type_to_pytorch_dtype(dtype: str) -> torch.dtype:
    """The type that torch's C++ side calls so, such as ``Long``.

    Raises:
        RuntimeError: if there is none.
    """
    found = _SCALAR_TYPES.get(dtype.lower())
    if found is None:
        raise RuntimeError(f"unknown scalar type '{dtype}'\n  have  {', '.join(_SCALAR_TYPES)}")
    return found


def pytorch_type_to_onnx_dtype(dtype_or_scalar_type: torch.dtype | str) -> DataType:
    """ONNX's number for a type of torch."""
    dtype = dtype_or_scalar_type
    if isinstance(dtype, str):
        dtype = pytorch_scalar_type_to_pytorch_dtype(dtype)
    return from_torch(dtype)


def onnx_dtype_to_pytorch_dtype(dtype: DataType | int) -> torch.dtype:
    """The type of torch for ONNX's number."""
    return to_torch(DataType(int(dtype)))
