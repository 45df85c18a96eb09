"""Module: runs the training and the evaluation model over one set of live parameters."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from onnxtrain.artifacts.models import save_model
from onnxtrain.errors import CheckpointError, FeedError, ModelError, ParameterError
from onnxtrain.graph.load import ModelLike, load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.kernels.dtypes import array_of
from onnxtrain.kernels.library import default_registry
from onnxtrain.runtime.feeds import Feeds
from onnxtrain.runtime.lower import LowerOptions, lower
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.ort_value import OrtValue, device_of
from onnxtrain.runtime.plan import Argument
from onnxtrain.runtime.program import Program
from onnxtrain.runtime.session import deterministic
from onnxtrain.training.checkpoint import CheckpointState, Parameter
from onnxtrain.transforms.extract import extract
from onnxtrain.transforms.training_graph import BUFFER_SUFFIX, RESET_INPUT
from onnxtrain.types import CPU, CUDA

_GRADIENT_SUFFIXES = (BUFFER_SUFFIX, "_grad", "_grad.accumulation.out")


class Runner:
    """A model with its parameters bound: user inputs in, user outputs out."""

    def __init__(
        self,
        model: ir.Model,
        bound: dict[str, torch.Tensor],
        device: torch.device,
        options: SessionOptions,
    ) -> None:
        provider = CUDA if device.type == "cuda" else CPU
        lowering = LowerOptions(provider, options.use_deterministic_compute, options.reuse_storage)
        names = {v.name for v in model.graph.inputs}
        state = {name: tensor for name, tensor in bound.items() if name in names}
        self.plan = lower(model, default_registry(), lowering, state=state)
        self.program = Program(self.plan, device, state, seed=options.seed)
        self.user_inputs = [a for a in self.plan.inputs if a.name != RESET_INPUT]
        self.user_outputs = [
            i for i, a in enumerate(self.plan.outputs) if not a.name.endswith(_GRADIENT_SUFFIXES)
        ]
        self._feeds = Feeds(self.user_inputs, device)
        self._resets = [a.name == RESET_INPUT for a in self.plan.inputs]
        self._options = options

    def arguments(self, inputs: Sequence[Any], reset: bool) -> list[Any]:
        """Inputs in order, checked, with the reset flag where the plan takes it."""
        if len(inputs) != len(self.user_inputs):
            wanted = ", ".join(a.name for a in self.user_inputs)
            raise FeedError(
                f"expected {len(self.user_inputs)} inputs ({wanted}), got {len(inputs)}"
            )
        given = iter([self._one(a, v) for a, v in zip(self.user_inputs, inputs, strict=True)])
        return [torch.tensor([reset]) if is_reset else next(given) for is_reset in self._resets]

    def _one(self, argument: Argument, value: Any) -> Any:
        return self._feeds.one(argument, value)

    def run(self, inputs: Sequence[Any], reset: bool = False) -> list[Any]:
        """User outputs for user inputs."""
        with deterministic(self._options.use_deterministic_compute):
            results = self.program(*self.arguments(inputs, reset))
        return [results[index] for index in self.user_outputs]


class Module:
    """A model in training.

    Args:
        train_model_uri: The training model: a path, or the model itself.
        state: Parameters; the module works on them in place.
        eval_model_uri: The evaluation model, needed for ``eval()`` and for export.
        device: ``cpu``, ``cuda`` or ``cuda:1``.
        session_options: Options of the sessions.
    """

    def __init__(
        self,
        train_model_uri: ModelLike,
        state: CheckpointState,
        eval_model_uri: ModelLike | None = None,
        device: str = "cpu",
        session_options: SessionOptions | None = None,
    ) -> None:
        self.training = True
        self._state = state
        self._device = device_of(device)
        self._options = session_options or SessionOptions()
        train_model = prepare(load_model(train_model_uri))
        self._order = [str(v.name) for v in train_model.graph.inputs if v.name in state.parameters]
        self._check(train_model)
        self._reset = True
        self._bound: dict[str, torch.Tensor] = {}
        if not state.parameters.nominal:
            self._place()
        self._train_model = train_model
        self._eval_model = None if eval_model_uri is None else load_model(eval_model_uri)
        self._runners: dict[bool, Runner] = {}

    def _check(self, model: ir.Model) -> None:
        """The checkpoint must belong to the model."""
        inputs = {v.name: v for v in model.graph.inputs}
        buffers = {n.removesuffix(BUFFER_SUFFIX) for n in inputs if n and n.endswith(BUFFER_SUFFIX)}
        trained = {p.name for p in self._state.parameters.in_order(trainable=True)}
        if missing := sorted(buffers - trained):
            raise CheckpointError(
                f"the checkpoint belongs to another model: it has no trainable parameter "
                f"{', '.join(map(repr, missing[:8]))}"
            )
        for parameter in self._state.parameters.in_order():
            declared = inputs.get(parameter.name)
            if declared is None or self._state.parameters.nominal:
                continue
            shape = None if declared.shape is None else list(declared.shape)
            if shape is not None and shape != list(parameter.tensor.shape):
                raise CheckpointError(
                    f"the checkpoint belongs to another model: parameter '{parameter.name}' has "
                    f"shape {list(parameter.tensor.shape)}, the model declares {shape}"
                )

    def _place(self) -> None:
        """Move parameters to the device and give trained ones a gradient buffer."""
        for parameter in self._state.parameters.in_order():
            parameter.tensor = parameter.tensor.to(self._device)
            self._bound[parameter.name] = parameter.tensor
            if parameter.requires_grad:
                parameter.grad_tensor = torch.zeros_like(parameter.tensor)
                self._bound[parameter.name + BUFFER_SUFFIX] = parameter.grad_tensor

    def runner(self, training: bool | None = None) -> Runner:
        """The runner of a mode (the current one by default), made when first asked for."""
        training = self.training if training is None else training
        if self._state.parameters.nominal:
            raise CheckpointError(
                "the state is nominal: load the parameters first with copy_buffer_to_parameters"
            )
        if training not in self._runners:
            model = self._train_model if training else self._evaluation()
            self._runners[training] = Runner(model, self._bound, self._device, self._options)
        return self._runners[training]

    def _evaluation(self) -> ir.Model:
        if self._eval_model is None:
            raise ModelError("there is no evaluation model; give eval_model_uri to the module")
        return prepare(self._eval_model.clone())

    def __call__(self, *inputs: Any) -> Any:
        """One step: forward, and in training mode backward; gradients are added up.

        Numpy arrays give numpy arrays, OrtValues and torch tensors give their own kind.
        """
        runner = self.runner()
        results = runner.run(inputs, self.take_reset() if self.training else False)
        converted = tuple(_like(inputs, value) for value in results)
        return converted[0] if len(converted) == 1 else converted

    def train(self, mode: bool = True) -> Module:
        """Go to training (or evaluation) mode."""
        self.training = mode
        return self

    def eval(self) -> Module:
        """Go to evaluation mode."""
        return self.train(False)

    def lazy_reset_grad(self) -> None:
        """Let the next training step overwrite the gradients instead of adding to them."""
        self._reset = True

    def take_reset(self) -> bool:
        """Whether this step overwrites the gradients; the next one adds to them again."""
        reset, self._reset = self._reset, False
        return reset

    def with_evaluation(self, model: ir.Model) -> Module:
        """A module over the same live parameters with another evaluation model."""
        other = copy.copy(self)
        other._eval_model = model
        other._runners = {}
        return other

    def input_names(self) -> list[str]:
        """User inputs of the current mode."""
        return [a.name for a in self.runner().user_inputs]

    def output_names(self) -> list[str]:
        """User outputs of the current mode."""
        runner = self.runner()
        return [runner.plan.outputs[i].name for i in runner.user_outputs]

    @property
    def state(self) -> CheckpointState:
        """The parameters in training."""
        return self._state

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self._device

    def parameters_in_order(self, trainable_only: bool) -> list[Parameter]:
        """Parameters in the order of the training model's inputs."""
        known = {p.name: p for p in self._state.parameters.in_order()}
        picked = [known[name] for name in self._order]
        return [p for p in picked if p.requires_grad or not trainable_only]

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """How many elements the parameters have."""
        if not self._state.parameters.nominal:
            return sum(p.tensor.numel() for p in self.parameters_in_order(trainable_only))
        wanted = self.parameters_in_order(trainable_only)
        return sum(math.prod(self._declared_shape(p.name)) for p in wanted)

    def _declared_shape(self, name: str) -> list[int]:
        """The shape that the training model declares for a parameter."""
        value = next(v for v in self._train_model.graph.inputs if v.name == name)
        dims = [d for d in value.shape or () if isinstance(d, int)]
        if value.shape is None or len(dims) != len(value.shape):
            raise ModelError(f"the training model declares no fixed shape for '{name}'")
        return dims

    def get_contiguous_parameters(self, trainable_only: bool = False) -> OrtValue:
        """All parameters, one after the other, in one new float32 buffer."""
        tensors = [p.tensor for p in self.parameters_in_order(trainable_only)]
        if self._state.parameters.nominal:
            raise CheckpointError("the state is nominal: there are no values to copy")
        return OrtValue(torch.cat([t.reshape(-1).to(torch.float32) for t in tensors]))

    def copy_buffer_to_parameters(self, buffer: Any, trainable_only: bool = True) -> None:
        """Overwrite the parameters from one buffer, the inverse of the above."""
        flat = buffer.torch() if isinstance(buffer, OrtValue) else torch.as_tensor(buffer)
        if self._state.parameters.nominal:
            self._complete(trainable_only)
        items = self.parameters_in_order(trainable_only)
        expected = sum(p.tensor.numel() for p in items)
        if flat.numel() != expected:
            raise ParameterError(
                f"the buffer has {flat.numel()} elements, the parameters have {expected}"
            )
        start = 0
        for parameter in items:
            count = parameter.tensor.numel()
            part = flat.reshape(-1)[start : start + count]
            parameter.tensor.copy_(part.view(parameter.tensor.shape))
            start += count

    def _complete(self, trainable_only: bool) -> None:
        """Give a nominal state tensors of the shapes that the model declares."""
        if trainable_only:
            raise CheckpointError(
                "the state is nominal: give the values of all parameters (trainable_only=False)"
            )
        for parameter in self._state.parameters.in_order():
            shape = self._declared_shape(parameter.name)
            parameter.tensor = parameter.tensor.new_zeros(shape)
        self._state.parameters.nominal = False
        self._place()

    def export_model_for_inferencing(
        self, inference_model_uri: str | os.PathLike[str], graph_output_names: list[str]
    ) -> None:
        """Write the evaluation model with the current parameters, cut down to some outputs."""
        if self._eval_model is None:
            raise ModelError("export needs the evaluation model; give eval_model_uri to the module")
        self.runner(training=True)
        values = {p.name: array_of(p.tensor) for p in self._state.parameters.in_order()}
        model = extract(self._eval_model.clone(), graph_output_names, values)
        save_model(model, inference_model_uri)


def _like(inputs: Sequence[Any], value: Any) -> Any:
    """A result in the kind of the inputs."""
    if any(isinstance(item, OrtValue) for item in inputs):
        return OrtValue(value)
    if any(isinstance(item, torch.Tensor) for item in inputs):
        return value
    return array_of(value)
