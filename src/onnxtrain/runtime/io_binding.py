"""IOBinding: inputs and outputs tied to memory once, with onnxruntime's interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch

from onnxtrain.errors import FeedError
from onnxtrain.runtime.ort_value import OrtValue

if TYPE_CHECKING:
    from onnxtrain.runtime.session import InferenceSession


class IOBinding:
    """Values bound to the inputs and outputs of a session.

    An output bound to a value is copied into that value's memory; one bound by name only is left
    where the session made it.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._wanted: dict[str, torch.Tensor | None] = {}
        self._results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: npt.NDArray[Any]) -> None:
        """Bind an input to a numpy array."""
        self._inputs[name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an input to a value."""
        self._inputs[name] = ortvalue

    def bind_torch_input(self, name: str, tensor: torch.Tensor) -> None:
        """Bind an input to a torch tensor."""
        self._inputs[name] = tensor

    def bind_output(self, name: str, *_: Any, **__: Any) -> None:
        """Ask for an output, in memory of the session's own."""
        self._wanted[name] = None

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Ask for an output in the memory of a value."""
        self._wanted[name] = ortvalue.torch()

    def run(self) -> None:
        """Run the session on what is bound."""
        names = list(self._wanted)
        results = self._session.run_torch(names or None, self._inputs)
        self._results = []
        for name, value in zip(names, results, strict=False):
            self._results.append(OrtValue(_into(name, self._wanted[name], value)))
        self._results += [OrtValue(value) for value in results[len(names) :]]

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


def _into(name: str, target: torch.Tensor | None, value: torch.Tensor) -> torch.Tensor:
    if target is None:
        return value
    if target.shape != value.shape or target.dtype != value.dtype:
        raise FeedError(
            f"output '{name}' is {value.dtype} {list(value.shape)}, "
            f"the bound memory {target.dtype} {list(target.shape)}"
        )
    return target.copy_(value)
