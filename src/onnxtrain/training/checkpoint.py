"""CheckpointState: the live parameters of a training run, and their file."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from onnxtrain.errors import CheckpointError, OptionError, ParameterError
from onnxtrain.formats import odtc
from onnxtrain.graph.names import nearest
from onnxtrain.kernels.dtypes import array_of, tensor_of

GROUP = "group0"
"""The only parameter group that the checkpoint format knows."""
LEARNING_RATE = "onnxtrain.learning_rate"
"""Property that carries the learning rate, which the format itself has no field for.

It is text, since numbers of the format are rounded to float32.
"""
DEFAULT_LEARNING_RATE = 0.001


class Parameter:
    """One parameter: its value, and its gradient once a module trains it."""

    def __init__(self, name: str, tensor: torch.Tensor, requires_grad: bool) -> None:
        self._name = name
        self.tensor = tensor
        self.grad_tensor: torch.Tensor | None = None
        self._requires_grad = requires_grad

    @property
    def name(self) -> str:
        """Name in the model."""
        return self._name

    @property
    def requires_grad(self) -> bool:
        """Whether it is trained."""
        return self._requires_grad

    @property
    def data(self) -> npt.NDArray[Any]:
        """A copy of the value; assigning overwrites the value in place."""
        return np.array(array_of(self.tensor))

    @data.setter
    def data(self, value: npt.ArrayLike | torch.Tensor) -> None:
        try:
            given = value if isinstance(value, torch.Tensor) else tensor_of(np.asarray(value))
        except (TypeError, ValueError) as error:
            raise ParameterError(
                f"parameter '{self._name}' is {self.tensor.dtype} {list(self.tensor.shape)}, "
                f"cannot take a {type(value).__name__} that is no array of numbers"
            ) from error
        if given.shape != self.tensor.shape or given.dtype != self.tensor.dtype:
            raise ParameterError(
                f"parameter '{self._name}' is {self.tensor.dtype} {list(self.tensor.shape)}, "
                f"cannot take {given.dtype} {list(given.shape)}"
            )
        with torch.no_grad():
            self.tensor.copy_(given)

    @property
    def grad(self) -> npt.NDArray[Any] | None:
        """A copy of the accumulated gradient, or None if there is none yet."""
        return None if self.grad_tensor is None else array_of(self.grad_tensor).copy()

    def __repr__(self) -> str:
        kind = "trainable" if self._requires_grad else "frozen"
        return f"Parameter({self._name}, {self.tensor.dtype}, {list(self.tensor.shape)}, {kind})"


class Parameters:
    """Parameters by name."""

    def __init__(self, items: dict[str, Parameter], nominal: bool) -> None:
        self._items = items
        self.nominal = nominal

    def __getitem__(self, name: str) -> Parameter:
        if name not in self._items:
            raise self.unknown(name)
        self.require_values()
        return self._items[name]

    def unknown(self, name: object, trained: bool = False) -> ParameterError:
        """What to raise for a name that no parameter (or none that is trained) has."""
        have = [p.name for p in self.in_order(trainable=True)]
        have += [] if trained else [p.name for p in self.in_order(trainable=False)]
        kind = "trained parameter" if trained else "parameter"
        return ParameterError(f"there is no {kind} '{name}'\n  have  {nearest([str(name)], have)}")

    def require_values(self) -> None:
        """Refuse a nominal state.

        Raises:
            CheckpointError: if the parameters have no values.
        """
        if self.nominal:
            raise CheckpointError(
                "the state is nominal: it has names but no values\n"
                "  load the parameters first with Module.copy_buffer_to_parameters"
            )

    def __setitem__(self, name: str, value: npt.ArrayLike | torch.Tensor) -> None:
        self[name].data = value  # type: ignore[assignment]

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        self.require_values()
        return iter(sorted(self._items.items()))

    def __repr__(self) -> str:
        return "\n".join(repr(item) for _, item in sorted(self._items.items()))

    def in_order(self, trainable: bool | None = None) -> list[Parameter]:
        """All parameters, or those that are (or are not) trained, in the order of the file."""
        return [
            p for p in self._items.values() if trainable is None or p.requires_grad == trainable
        ]


class Tensors(dict[str, torch.Tensor]):
    """Live tensors of the trained parameters by name; assigning overwrites a value in place."""

    def __init__(self, parameters: Parameters) -> None:
        super().__init__((p.name, p.tensor) for p in parameters.in_order(trainable=True))
        self._parameters = parameters

    def __missing__(self, name: object) -> torch.Tensor:
        raise self._parameters.unknown(name, trained=True)

    def __setitem__(self, name: str, value: npt.ArrayLike | torch.Tensor) -> None:
        self._parameters[name] = value

    def update(self, *values: Any, **named: Any) -> None:
        """Overwrite several values."""
        for name, value in dict(*values, **named).items():
            self[name] = value

    def __reduce__(self) -> tuple[type, tuple[dict[str, torch.Tensor]]]:
        return dict, (dict(self),)


class Properties:
    """The user's own values: whole numbers, floating point numbers and strings."""

    def __init__(self, items: dict[str, int | float | str]) -> None:
        self._items = items

    def __getitem__(self, name: str) -> int | float | str:
        return self._items[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a property must be a string, not {name!r}")
        if getattr(value, "ndim", None) == 0:  # a number of numpy or torch, such as a loss
            value = value.item()
        if not isinstance(value, (int, float, str)):
            raise TypeError(f"property '{name}' must be int, float or str, not {type(value)}")
        odtc.check_property(name, value)  # not hours later, when the state is saved
        self._items[name] = int(value) if isinstance(value, bool) else value

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[tuple[str, int | float | str]]:
        return iter(sorted(self._items.items()))

    def __repr__(self) -> str:
        return repr(dict(self))


@dataclasses.dataclass
class OptimizerState:
    """Step count, learning rates and moments of the optimizer."""

    step: int = 0
    learning_rate: float = DEFAULT_LEARNING_RATE
    initial_learning_rate: float = DEFAULT_LEARNING_RATE
    moments: dict[str, dict[str, torch.Tensor]] = dataclasses.field(default_factory=dict)


class CheckpointState:
    """Parameters, optimizer state and properties of a training run.

    Modules and optimizers work on the tensors held here, so saving always saves what is current.
    """

    def __init__(
        self,
        parameters: dict[str, Parameter],
        properties: dict[str, int | float | str] | None = None,
        optimizer: OptimizerState | None = None,
        nominal: bool = False,
    ) -> None:
        self._parameters = Parameters(parameters, nominal)
        self._properties = Properties(dict(properties or {}))
        self.optimizer = optimizer

    @property
    def parameters(self) -> Parameters:
        """Parameters by name; values are assigned one by one."""
        return self._parameters

    @property
    def properties(self) -> Properties:
        """The user's own values by name."""
        return self._properties

    @classmethod
    def load_checkpoint(cls, checkpoint_uri: str | os.PathLike[str]) -> CheckpointState:
        """Load a checkpoint file.

        Raises:
            CheckpointError: if it is damaged or of another version.
        """
        data = odtc.read_checkpoint(checkpoint_uri)
        parameters = {
            name: Parameter(name, tensor_of(array), trained)
            for items, trained in ((data.trainable, True), (data.frozen, False))
            for name, array in items.items()
        }
        properties = dict(data.properties)
        rate = properties.pop(LEARNING_RATE, None)
        optimizer = None
        if GROUP in data.optimizer_groups:
            group = data.optimizer_groups[GROUP]
            moments = {
                name: {key: tensor_of(array) for key, array in states.items()}
                for name, states in group.states.items()
            }
            initial = group.initial_learning_rate
            optimizer = OptimizerState(group.step, _rate(rate, initial), initial, moments)
        return cls(parameters, properties, optimizer, data.nominal)

    @staticmethod
    def save_checkpoint(
        state: CheckpointState,
        checkpoint_uri: str | os.PathLike[str],
        include_optimizer_state: bool = False,
    ) -> None:
        """Write a checkpoint file; a crash at any moment leaves the old one or the new one.

        Of a nominal state that is names, types and properties; it has no optimizer state.

        Raises:
            OptionError: if it is not given a state.
        """
        if not isinstance(state, CheckpointState):
            raise OptionError(
                f"what is saved is a CheckpointState, not {state!r}\n"
                "  give  CheckpointState.save_checkpoint(state, path)"
            )
        nominal = state.parameters.nominal
        data = odtc.CheckpointData(
            trainable=_arrays(state.parameters.in_order(trainable=True)),
            frozen=_arrays(state.parameters.in_order(trainable=False)),
            properties=dict(state.properties),
            nominal=nominal,
        )
        if include_optimizer_state and state.optimizer is not None and not nominal:
            data.optimizer_groups[GROUP] = _group(state.optimizer)
            data.properties[LEARNING_RATE] = repr(state.optimizer.learning_rate)
        odtc.write_checkpoint(checkpoint_uri, data)


def _rate(saved: int | float | str | None, initial: float) -> float:
    """The learning rate of a checkpoint; those of the reference only have the initial one."""
    with contextlib.suppress(TypeError, ValueError):
        return float(saved)  # type: ignore[arg-type]
    return initial or DEFAULT_LEARNING_RATE


def _arrays(items: list[Parameter]) -> dict[str, npt.NDArray[Any]]:
    return {p.name: array_of(p.tensor) for p in sorted(items, key=lambda p: p.name)}


def _group(optimizer: OptimizerState) -> odtc.OptimizerGroup:
    states = {
        name: {key: array_of(tensor) for key, tensor in moments.items()}
        for name, moments in sorted(optimizer.moments.items())
    }
    return odtc.OptimizerGroup(optimizer.step, optimizer.initial_learning_rate, states)
