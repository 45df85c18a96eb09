"""Element types of ONNX and of torch, both ways, and numpy arrays as tensors without copies."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from onnxtrain.types import NARROW, DataType

_PAIRS: list[tuple[DataType, torch.dtype]] = [
    (DataType.FLOAT, torch.float32),
    (DataType.DOUBLE, torch.float64),
    (DataType.FLOAT16, torch.float16),
    (DataType.BFLOAT16, torch.bfloat16),
    (DataType.INT8, torch.int8),
    (DataType.INT16, torch.int16),
    (DataType.INT32, torch.int32),
    (DataType.INT64, torch.int64),
    (DataType.UINT8, torch.uint8),
    (DataType.UINT16, torch.uint16),
    (DataType.UINT32, torch.uint32),
    (DataType.UINT64, torch.uint64),
    (DataType.BOOL, torch.bool),
    (DataType.COMPLEX64, torch.complex64),
    (DataType.COMPLEX128, torch.complex128),
    (DataType.FLOAT8E4M3FN, torch.float8_e4m3fn),
    (DataType.FLOAT8E4M3FNUZ, torch.float8_e4m3fnuz),
    (DataType.FLOAT8E5M2, torch.float8_e5m2),
    (DataType.FLOAT8E5M2FNUZ, torch.float8_e5m2fnuz),
]
if hasattr(torch, "float8_e8m0fnu"):
    _PAIRS.append((DataType.FLOAT8E8M0, torch.float8_e8m0fnu))

# Types of less than a byte: the smallest torch type that has all their values.
_KEPT_IN: dict[DataType, torch.dtype] = {
    dtype: (
        torch.float8_e4m3fn
        if dtype.name.startswith("FLOAT")
        else torch.uint8
        if dtype.name.startswith("UINT")
        else torch.int8
    )
    for dtype in NARROW
}
_NARROW_NUMPY = {np.dtype(dtype.numpy()): dtype for dtype in _KEPT_IN}

_TO_TORCH = dict(_PAIRS) | _KEPT_IN
_FROM_TORCH = {torch_dtype: dtype for dtype, torch_dtype in _PAIRS}

# numpy dtypes that torch.from_numpy refuses, with a plain type of the same width.
_AS_BITS: dict[Any, tuple[Any, torch.dtype]] = {
    np.dtype(ml_dtypes.bfloat16): (np.uint16, torch.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn): (np.uint8, torch.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e4m3fnuz): (np.uint8, torch.float8_e4m3fnuz),
    np.dtype(ml_dtypes.float8_e5m2): (np.uint8, torch.float8_e5m2),
    np.dtype(ml_dtypes.float8_e5m2fnuz): (np.uint8, torch.float8_e5m2fnuz),
}
if hasattr(torch, "float8_e8m0fnu"):
    _AS_BITS[np.dtype(ml_dtypes.float8_e8m0fnu)] = (np.uint8, torch.float8_e8m0fnu)
_FROM_BITS = {torch_dtype: (bits, dtype) for dtype, (bits, torch_dtype) in _AS_BITS.items()}


def to_torch(dtype: DataType | int) -> torch.dtype:
    """The torch type of an ONNX element type; for one of less than a byte, what it is kept in.

    Raises:
        TypeError: if torch has none.
    """
    try:
        return _TO_TORCH[DataType(dtype)]
    except KeyError:
        raise TypeError(f"torch has no element type for {DataType(dtype).name}") from None


def from_torch(dtype: torch.dtype) -> DataType:
    """The ONNX element type of a torch type."""
    return _FROM_TORCH[dtype]


def tensor_of(array: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor over the array's own memory (a copy only where the array is read-only).

    Elements of less than a byte are widened, see ``to_torch``.
    """
    array = np.asarray(array)
    narrow = _NARROW_NUMPY.get(array.dtype)
    if narrow is not None:
        return torch.from_numpy(array.astype(np.float32)).to(to_torch(narrow))
    if not array.flags.writeable or any(s < 0 for s in array.strides):
        array = array.copy()
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    bits = _AS_BITS.get(array.dtype)
    if bits is None:
        return torch.from_numpy(array)
    plain, torch_dtype = bits
    return torch.from_numpy(array.view(plain)).view(torch_dtype)


def array_of(tensor: torch.Tensor, dtype: DataType | None = None) -> npt.NDArray[Any]:
    """A numpy array of the tensor, over the same memory if it lies on the CPU.

    Args:
        tensor: The tensor.
        dtype: The ONNX type, where it may be narrower than the tensor's.
    """
    tensor = tensor.detach().cpu()
    if dtype in _KEPT_IN:
        return tensor.to(torch.float32).numpy().astype(dtype.numpy())
    bits = _FROM_BITS.get(tensor.dtype)
    if bits is None:
        return tensor.resolve_neg().resolve_conj().numpy()
    plain, dtype = bits
    same_width = torch.uint16 if plain is np.uint16 else torch.uint8
    return tensor.contiguous().view(same_width).numpy().view(dtype)


def text_of(array: npt.NDArray[Any]) -> npt.NDArray[np.object_]:
    """Strings of any numpy kind as an array of Python strings."""
    items = [item.decode() if isinstance(item, bytes) else str(item) for item in array.reshape(-1)]
    return np.array(items, object).reshape(array.shape)
