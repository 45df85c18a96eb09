"""OrtValue: a tensor with the interface that onnxruntime's users know, over a torch tensor."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.dlpack import from_dlpack

from onnxtrain.errors import DeviceError, FeedError
from onnxtrain.kernels.dtypes import array_of, from_torch, tensor_of, to_torch
from onnxtrain.runtime.absent import absent
from onnxtrain.types import NARROW, DataType, dtype_name

Tensors = torch.Tensor | list[torch.Tensor]


class OrtValue:
    """A tensor, or a sequence of tensors, on some device; nothing is copied when it is wrapped.

    What is wrapped may be another OrtValue, also one of onnxruntime.
    """

    def __init__(self, value: Tensors | OrtValue | Any) -> None:
        self._value: Tensors = _raw_of(value)

    @property
    def _ortvalue(self) -> OrtValue:
        """The value itself, which in the reference is another object inside of this one.

        Flat buffers of modules are such inner objects there, so programs unwrap and wrap them.
        """
        return self

    def __getattr__(self, name: str) -> Any:
        raise absent("OrtValue", name)

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: npt.NDArray[Any], device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """A value over a numpy array (on the CPU: over its own memory, if that has no gaps)."""
        tensor = _tensor_of(numpy_obj).contiguous()
        return OrtValue(tensor.to(device_of(device_type, device_id)))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(
        data: npt.NDArray[Any], onnx_element_type: int
    ) -> OrtValue:
        """A value over an array whose bits are read as an ONNX type that numpy may not have.

        Raises:
            FeedError: if elements of the type have another size.
        """
        dtype = element_type_of(onnx_element_type)
        tensor = _tensor_of(data).contiguous()
        if tensor.element_size() != dtype.itemsize:
            raise FeedError(
                f"cannot read elements of {tensor.element_size()} bytes as "
                f"{dtype_name(DataType(onnx_element_type))}, which has {dtype.itemsize}"
            )
        return OrtValue(tensor.view(dtype))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: Any = np.float32,
        device_type: str = "cpu",
        device_id: int = 0,
    ) -> OrtValue:
        """A value whose content is not set.

        Raises:
            FeedError: if a size is negative, or there are no tensors of the type.
        """
        dtype = element_type_of(element_type)
        device = device_of(device_type, device_id)
        return OrtValue(torch.empty(checked_shape(shape), dtype=dtype, device=device))

    @staticmethod
    def from_dlpack(data: Any, is_bool_tensor: bool = False) -> OrtValue:
        """A value over the memory of any object that speaks DLPack."""
        tensor = from_dlpack(data)
        return OrtValue(tensor.view(torch.bool) if is_bool_tensor else tensor)

    def to_dlpack(self) -> Any:
        """A DLPack capsule over the same memory."""
        return self.__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.torch().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.torch().__dlpack_device__()

    def torch(self) -> torch.Tensor:
        """The tensor itself."""
        if isinstance(self._value, list):
            raise TypeError("the value is a sequence of tensors, not a tensor")
        return self._value

    def raw(self) -> Tensors:
        """The tensor or the list of tensors."""
        return self._value

    def numpy(self) -> Any:
        """A numpy array (over the same memory on the CPU), or a list of arrays."""
        if isinstance(self._value, list):
            return [array_of(item) for item in self._value]
        return array_of(self._value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = array_of(self.torch())
        if copy is False and dtype is not None and array.dtype != dtype:
            raise ValueError(f"cannot show {array.dtype} as {np.dtype(dtype)} without a copy")
        return np.array(array, dtype) if copy else np.asarray(array, dtype)

    def shape(self) -> list[int]:
        """Dimensions."""
        return list(self.torch().shape)

    def data_type(self) -> str:
        """Type as onnxruntime writes it."""
        if isinstance(self._value, list):
            first = self._value[0].dtype if self._value else torch.float32
            return f"seq(tensor({dtype_name(from_torch(first))}))"
        return f"tensor({dtype_name(from_torch(self._value.dtype))})"

    def element_type(self) -> int:
        """ONNX number of the element type."""
        return int(from_torch(self.torch().dtype))

    def device_name(self) -> str:
        """``cpu`` or ``cuda``."""
        return self.torch().device.type

    def tensor_size_in_bytes(self) -> int:
        """Bytes of all elements."""
        return self.torch().nbytes

    def has_value(self) -> bool:
        """Whether there is a value (always)."""
        return True

    def is_tensor(self) -> bool:
        """Whether the value is a tensor."""
        return not isinstance(self._value, list)

    def is_tensor_sequence(self) -> bool:
        """Whether the value is a sequence of tensors."""
        return isinstance(self._value, list)

    def is_sparse_tensor(self) -> bool:
        """Whether the value is a sparse tensor (never)."""
        return False

    def data_ptr(self) -> int:
        """Address of the first element."""
        return self.torch().data_ptr()

    def update_inplace(self, data: npt.NDArray[Any] | OrtValue) -> None:
        """Overwrite the content with an array's, or with another value's on any device.

        Raises:
            FeedError: if it has another type or shape.
        """
        if not isinstance(data, (np.ndarray, OrtValue)):
            raise TypeError(f"cannot write a {type(data).__name__}: give an array or an OrtValue")
        old = self.torch()
        new = data.torch() if isinstance(data, OrtValue) else _tensor_of(data)
        if (new.dtype, new.shape) != (old.dtype, old.shape):
            raise FeedError(
                f"cannot write {new.dtype} {list(new.shape)} into a value "
                f"of {old.dtype} {list(old.shape)}"
            )
        old.copy_(new)


def is_ort_value(value: object) -> bool:
    """Whether a value is an OrtValue: of this package, of onnxruntime, or what that has inside."""
    if isinstance(value, (torch.Tensor, list)):
        return False
    return isinstance(value, OrtValue) or (
        hasattr(value, "__dlpack__") and hasattr(value, "data_type")
    )


def _raw_of(value: Any) -> Tensors:
    """What is in an OrtValue, or the value itself; onnxruntime hands over truth values as bytes."""
    if isinstance(value, OrtValue):
        return value.raw()
    if is_ort_value(value):
        return OrtValue.from_dlpack(value, value.data_type() == "tensor(bool)").raw()
    tensors: Tensors = value
    return tensors


def _tensor_of(array: Any) -> torch.Tensor:
    array = np.asarray(array)
    if array.dtype.kind in "OUS":
        raise FeedError(
            "an OrtValue holds numbers, not text or Python objects\n"
            "  feed arrays of strings themselves, convert objects with astype"
        )
    try:
        return tensor_of(array)
    except TypeError as error:
        raise FeedError(f"cannot take an array of {array.dtype}: {error}") from None


def element_type_of(given: Any) -> torch.dtype:
    """The torch type of a numpy type or of the number of an ONNX type.

    Raises:
        FeedError: if there are no tensors of it.
    """
    try:
        if isinstance(given, int):
            return to_torch(DataType(given))
        return _tensor_of(np.empty(0, given)).dtype
    except (TypeError, ValueError):
        raise FeedError(f"there are no tensors of element type {given!r}") from None


def checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape that memory can have.

    Raises:
        FeedError: if a size is negative.
    """
    sizes = tuple(int(size) for size in shape)
    if any(size < 0 for size in sizes):
        raise FeedError(f"memory cannot have the shape {list(sizes)}")
    return sizes


def tensor_at(
    address: int, shape: Sequence[int], element_type: Any, device: torch.device
) -> torch.Tensor:
    """A tensor over memory of somebody else, who keeps it alive.

    Args:
        address: Of the first element; elements follow one another without gaps.
        shape: Dimensions.
        element_type: A numpy type or the number of an ONNX type.
        device: Where the memory is.

    Raises:
        FeedError: if there is no address, or elements are smaller than a byte: in other runtimes
            two of these share a byte, here each has its own.
    """
    dtype, sizes = element_type_of(element_type), checked_shape(shape)
    if isinstance(element_type, int) and DataType(element_type) in NARROW:
        raise FeedError(
            f"cannot use memory of {dtype_name(DataType(element_type))}: its elements are packed\n"
            "  bind an array or an OrtValue"
        )
    count = math.prod(sizes) * dtype.itemsize
    if not count:
        return torch.empty(sizes, dtype=dtype, device=device)
    if not isinstance(address, int) or address <= 0:
        raise FeedError(f"there is no memory of shape {list(sizes)} at address {address!r}")
    if device.type == "cuda":
        flat = torch.as_tensor(_OnDevice(address, count), device=device)
    else:
        flat = torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=torch.uint8)
    return flat.view(dtype).view(sizes)


class _OnDevice:
    """Bytes on a CUDA device, in the form in which libraries hand them to each other."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def device_of(name: str | torch.device, index: int | None = None) -> torch.device:
    """The torch device of ``cpu``, ``cuda`` or ``cuda:1``, as text or as torch says it.

    Raises:
        DeviceError: if the name is no device, or the device is not there.
    """
    kind, _, number = str(name).lower().partition(":")
    if kind in ("gpu", "cuda") and (number.isdecimal() or not number):
        if not torch.cuda.is_available():
            raise DeviceError(f"device '{name}' is not available: torch sees no CUDA device")
        position = int(number) if number else (index or 0)
        if position >= torch.cuda.device_count():
            raise DeviceError(f"device '{name}' is not there, have {torch.cuda.device_count()}")
        return torch.device("cuda", position)
    if kind == "cpu":
        return torch.device("cpu")
    raise DeviceError(f"unknown device '{name}'\n  have  cpu, cuda, cuda:<index>")
