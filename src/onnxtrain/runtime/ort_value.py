"""OrtValue: a tensor with the interface that onnxruntime's users know, over a torch tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.dlpack import from_dlpack

from onnxtrain.errors import DeviceError, FeedError
from onnxtrain.kernels.dtypes import array_of, from_torch, tensor_of, to_torch
from onnxtrain.types import dtype_name

Tensors = torch.Tensor | list[torch.Tensor]


class OrtValue:
    """A tensor, or a sequence of tensors, on some device; nothing is copied when it is wrapped."""

    def __init__(self, value: Tensors | OrtValue) -> None:
        self._value: Tensors = value.raw() if isinstance(value, OrtValue) else value

    @property
    def _ortvalue(self) -> OrtValue:
        """The value itself, which in the reference is another object inside of this one.

        Flat buffers of modules are such inner objects there, so programs unwrap and wrap them.
        """
        return self

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: npt.NDArray[Any], device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """A value over a numpy array (on the CPU: over its own memory)."""
        return OrtValue(tensor_of(numpy_obj).to(device_of(device_type, device_id)))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: Any = np.float32,
        device_type: str = "cpu",
        device_id: int = 0,
    ) -> OrtValue:
        """A value whose content is not set."""
        if isinstance(element_type, int):
            dtype = to_torch(element_type)
        else:
            dtype = tensor_of(np.empty(0, element_type)).dtype
        device = device_of(device_type, device_id)
        return OrtValue(torch.empty(tuple(shape), dtype=dtype, device=device))

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

    def has_value(self) -> bool:
        """Whether there is a value (always)."""
        return True

    def is_tensor(self) -> bool:
        """Whether the value is a tensor."""
        return not isinstance(self._value, list)

    def is_tensor_sequence(self) -> bool:
        """Whether the value is a sequence of tensors."""
        return isinstance(self._value, list)

    def data_ptr(self) -> int:
        """Address of the first element."""
        return self.torch().data_ptr()

    def update_inplace(self, array: npt.NDArray[Any]) -> None:
        """Overwrite the content.

        Raises:
            FeedError: if the array has another type or shape.
        """
        old, new = self.torch(), tensor_of(array)
        if (new.dtype, new.shape) != (old.dtype, old.shape):
            raise FeedError(
                f"cannot write {new.dtype} {list(new.shape)} into a value "
                f"of {old.dtype} {list(old.shape)}"
            )
        old.copy_(new)


def device_of(name: str, index: int | None = None) -> torch.device:
    """The torch device of ``cpu``, ``cuda`` or ``cuda:1``.

    Raises:
        DeviceError: if the name is no device, or the device is not there.
    """
    kind, _, number = name.lower().partition(":")
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
