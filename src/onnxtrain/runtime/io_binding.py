"""IOBinding: inputs and outputs tied to memory once, with onnxruntime's interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch

from onnxtrain.errors import FeedError
from onnxtrain.runtime.absent import absent
from onnxtrain.runtime.ort_value import OrtValue, device_of, tensor_at

if TYPE_CHECKING:
    from onnxtrain.runtime.session import InferenceSession


class IOBinding:
    """Values bound to the inputs and outputs of a session.

    An output bound to memory is copied into that memory; one bound to a device is put there.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._wanted: dict[str, torch.Tensor | torch.device] = {}
        self._results: list[OrtValue] = []

    def __getattr__(self, name: str) -> Any:
        raise absent("IOBinding", name)

    def _bind(self, name: str, value: Any) -> None:
        given = [a.name for a in self._session.get_inputs()]
        given += [a.name for a in self._session.get_overridable_initializers()]
        _check_name("input", name, given)
        self._inputs[name] = value

    def _want(self, name: str, where: torch.Tensor | torch.device) -> None:
        _check_name("output", name, [a.name for a in self._session.get_outputs()])
        self._wanted[name] = where

    def bind_cpu_input(self, name: str, arr_on_cpu: npt.NDArray[Any]) -> None:
        """Bind an input to a numpy array."""
        self._bind(name, arr_on_cpu)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an input to a value."""
        self._bind(name, ortvalue)

    def bind_torch_input(self, name: str, tensor: torch.Tensor) -> None:
        """Bind an input to a torch tensor."""
        self._bind(name, tensor)

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind an input to memory at an address, which must stay there; see ``tensor_at``."""
        device = device_of(device_type, device_id)
        self._bind(name, tensor_at(buffer_ptr, shape, element_type, device))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output on a device, or in the memory at an address; see ``tensor_at``.

        Raises:
            FeedError: if there is an address, but no type or shape.
        """
        device = device_of(device_type, device_id)
        if buffer_ptr is None:
            self._want(name, device)
        elif element_type is None or shape is None:
            raise FeedError(f"memory for output '{name}' needs an element type and a shape")
        else:
            self._want(name, tensor_at(buffer_ptr, shape, element_type, device))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Ask for an output in the memory of a value."""
        self._want(name, ortvalue.torch())

    def run(self) -> None:
        """Run the session on what is bound; without bound outputs, for all of them."""
        names = list(self._wanted)
        results = self._session.run_torch(names or None, self._inputs)
        placed = [_into(n, self._wanted[n], r) for n, r in zip(names, results, strict=False)]
        self._results = [OrtValue(value) for value in [*placed, *results[len(names) :]]]

    def synchronize_inputs(self) -> None:
        """Wait until the device has done what was asked of it before."""
        _synchronize()

    def synchronize_outputs(self) -> None:
        """Wait until the device has made the outputs."""
        _synchronize()

    def get_outputs(self) -> list[OrtValue]:
        """Results of the last run."""
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Results of the last run as numpy arrays."""
        return [value.numpy() for value in self._results]

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self._wanted.clear()

    def get_inputs(self) -> Sequence[str]:
        """Names of the inputs that are bound."""
        return list(self._inputs)


def _into(name: str, where: torch.Tensor | torch.device, value: Any) -> Any:
    if isinstance(where, torch.device):
        if isinstance(value, list):
            return [_into(name, where, item) for item in value]
        return value.to(where) if isinstance(value, torch.Tensor) else value
    if not isinstance(value, torch.Tensor):
        raise FeedError(f"output '{name}' is no tensor of numbers and cannot be bound to memory")
    if where.shape != value.shape or where.dtype != value.dtype:
        raise FeedError(
            f"output '{name}' is {value.dtype} {list(value.shape)}, "
            f"the bound memory {where.dtype} {list(where.shape)}"
        )
    return where.copy_(value)


def _check_name(kind: str, name: str, have: Sequence[str]) -> None:
    if name not in have:
        raise FeedError(f"the model has no {kind} {name!r}\n  {kind}s  {', '.join(have)}")


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
