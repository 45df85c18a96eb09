"""Module: runs the training and the evaluation model over one set of live parameters."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onnxtrain.errors import CheckpointError, ModelError, ParameterError
from onnxtrain.formats.models import save_model
from onnxtrain.graph.loading.load import ModelLike, load_model
from onnxtrain.graph.prepare import complete, prepare
from onnxtrain.kernels.dtypes import array_of, to_torch
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.ort_value import OrtValue, device_of, is_ort_value
from onnxtrain.training.checkpoint import CheckpointState, Parameter
from onnxtrain.training.checks import check_declared, check_kinds, check_state
from onnxtrain.training.copies import Copies
from onnxtrain.training.runner import Runner, user_inputs, user_outputs
from onnxtrain.training.scaling import LossScale
from onnxtrain.transforms.extract import extract
from onnxtrain.transforms.mode import moved_statistics
from onnxtrain.transforms.narrow_training import narrow_training
from onnxtrain.transforms.precision import narrow_type
from onnxtrain.transforms.precision_copies import COPY_SUFFIX
from onnxtrain.transforms.reference.unfilled import fill_gradients
from onnxtrain.transforms.reference.unsummed import sum_gradients
from onnxtrain.transforms.training_graph import BUFFER_SUFFIX, SCALE_INPUT


class Module:
    """A model in training.

    Args:
        train_model_uri: The training model: a path, or the model itself.
        state: Parameters; the module works on them in place.
        eval_model_uri: The evaluation model, needed for ``eval()`` and for export.
        device: ``cpu``, ``cuda`` or ``cuda:1``.
        session_options: Options of the sessions.
        scaling: How the loss is scaled, if it is; a training model with an input for the scale
            has one that is found by itself.
        built: Whether the models were just built of a prepared one and nobody else uses them, so
            that they need neither be copied nor prepared again.
        precision: ``bf16`` or ``fp16`` lets a training model in float32 compute in 16 bits: its
            backward pass is built anew. Parameters, gradients and the evaluation model stay.

    Raises:
        OptionError: if there is no such precision, the training model is not in float32, or an
            argument is of another kind.
        CheckpointError: if the state belongs to another model.
    """

    def __init__(
        self,
        train_model_uri: ModelLike,
        state: CheckpointState,
        eval_model_uri: ModelLike | None = None,
        device: str = "cpu",
        session_options: SessionOptions | None = None,
        scaling: LossScale | None = None,
        built: bool = False,
        precision: str = "fp32",
    ) -> None:
        narrow = narrow_type(precision)
        check_kinds(state, session_options)
        self.training = True
        self._state = state
        self._device = device_of(device)
        self._options = session_options or SessionOptions()
        load = load_model
        if not built:
            load = functools.partial(load_model, own=True, edit=self._options.replacing())
        train_model = load(train_model_uri)
        self._train_model = complete(train_model) if built else prepare(train_model)
        if not built and narrow is None:  # one that is narrowed has its gradients built anew
            fill_gradients(self._train_model, level=3)
            sum_gradients(self._train_model, level=3)
        self._eval_model = None if eval_model_uri is None else load(eval_model_uri)
        check_state(state, self._train_model)
        if self._eval_model is not None:
            check_declared(state, self._eval_model, "evaluation model")
        self._statistics = moved_statistics(self._train_model)
        if narrow is not None:
            names = {parameter.name for parameter in state.parameters.in_order()}
            prepare(narrow_training(self._train_model, narrow, names))
        self.scaling = scaling
        if scaling is None and SCALE_INPUT in {v.name for v in self._train_model.graph.inputs}:
            self.scaling = LossScale(self._device)
        inputs = [str(value.name) for value in self._train_model.graph.inputs]
        self._order = [name for name in inputs if name in state.parameters]
        self._reset = True
        self.copies = Copies()
        self._bound: dict[str, torch.Tensor] = {}
        self._runners: dict[bool, Runner] = {}
        if not state.parameters.nominal:
            self._place()
            self.runner(training=True)

    def _place(self) -> None:
        """Move parameters to the device and give trained ones a gradient buffer.

        Modules over one state have one gradient: it is what the state shows and optimizers read.
        """
        declared = {v.name: v.shape for v in self._train_model.graph.inputs}
        if self.scaling is not None and SCALE_INPUT in declared:
            rank = len(declared[SCALE_INPUT] or ())
            self._bound[SCALE_INPUT] = self.scaling.scale.view([1] * rank)
        for parameter in self._state.parameters.in_order():
            parameter.tensor = parameter.tensor.to(self._device)
            self._bound[parameter.name] = parameter.tensor
            if parameter.requires_grad:
                gradient = parameter.grad_tensor
                if gradient is None or gradient.device != parameter.tensor.device:
                    gradient = parameter.grad_tensor = torch.zeros_like(parameter.tensor)
                self._bound[parameter.name + BUFFER_SUFFIX] = gradient
        self._copy()

    def _copy(self) -> None:
        """Make the copies of parameters that the training model reads."""
        self.copies = Copies()
        for value in self._train_model.graph.inputs:
            name = str(value.name)
            owner = name.removesuffix(COPY_SUFFIX)
            if owner == name or owner not in self._state.parameters or value.dtype is None:
                continue
            parameter = self._state.parameters[owner]
            dtype = to_torch(value.dtype)
            self._bound[name] = self.copies.add(parameter.tensor, dtype, parameter.requires_grad)
        self.copies.mark()

    def _model(self, training: bool) -> ir.Model:
        if training:
            return self._train_model
        if self._eval_model is None:
            raise ModelError("there is no evaluation model; give eval_model_uri to the module")
        return self._eval_model

    def runner(self, training: bool | None = None) -> Runner:
        """The runner of a mode (the current one by default), made when first asked for."""
        training = self.training if training is None else training
        self._state.parameters.require_values()
        if training:
            self.copies.renew()
        if training not in self._runners:
            model = self._model(training)
            model = model if training else prepare(model.clone())
            self._runners[training] = self.runner_of(model, with_loss=True)
        return self._runners[training]

    def runner_of(self, model: ir.Model, with_loss: bool = False) -> Runner:
        """A runner of another prepared model over the same live parameters."""
        return Runner(model, self._bound, self._device, self._options, with_loss)

    def __call__(self, *inputs: Any) -> Any:
        """One step: forward, and in training mode backward; gradients are added up.

        Numpy arrays give numpy arrays, OrtValues (also those of onnxruntime) give OrtValues, and
        torch tensors give torch tensors.
        """
        runner = self.runner()
        if self.training:
            with self.resetting() as reset:
                if reset:
                    self.keep()
                results = runner.run(inputs, reset)
        else:
            results = runner.run(inputs)
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

    @contextlib.contextmanager
    def resetting(self) -> Iterator[bool]:
        """With: whether this step overwrites the gradients.

        Only if the step succeeds does the next one add to them.
        """
        yield self._reset
        self._reset = False

    def keep(self) -> None:
        """Keep running statistics as they are before a step, for the case that it is skipped."""
        if self.scaling is not None:
            known = self._state.parameters
            self.scaling.keep([known[n].tensor for n in self._statistics if n in known])

    def input_names(self) -> list[str]:
        """User inputs of the current mode."""
        return user_inputs(self._model(self.training), self._parameter_names())

    def output_names(self) -> list[str]:
        """User outputs of the current mode."""
        return user_outputs(self._model(self.training), self._parameter_names())

    def _parameter_names(self) -> set[str]:
        return {p.name for p in self._state.parameters.in_order()}

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
        return sum(math.prod(self._shape(p)) for p in self.parameters_in_order(trainable_only))

    def _shape(self, parameter: Parameter) -> Sequence[int]:
        """The shape of a parameter, as the training model declares it if there is no value."""
        if not self._state.parameters.nominal:
            return parameter.tensor.shape
        value = next(v for v in self._train_model.graph.inputs if v.name == parameter.name)
        dims = [d for d in value.shape or () if isinstance(d, int)]
        if value.shape is None or len(dims) != len(value.shape):
            raise ModelError(f"the training model declares no fixed shape for '{parameter.name}'")
        return dims

    def get_contiguous_parameters(self, trainable_only: bool = False) -> OrtValue:
        """All parameters, one after the other, in one new buffer.

        It is float32, or float64 if a parameter is.
        """
        self._state.parameters.require_values()
        tensors = [p.tensor for p in self.parameters_in_order(trainable_only)]
        wide = any(t.dtype == torch.float64 for t in tensors)
        flat = torch.empty(0, dtype=torch.float64 if wide else torch.float32, device=self._device)
        return OrtValue(torch.cat([flat, *(t.reshape(-1).to(flat.dtype) for t in tensors)]))

    def copy_buffer_to_parameters(self, buffer: Any, trainable_only: bool = True) -> None:
        """Overwrite the parameters from one buffer, the inverse of the above.

        Raises:
            ParameterError: if the buffer has another size, or holds no real numbers; nothing is
                changed then.
            CheckpointError: if the state is nominal and only trainable parameters are given.
        """
        flat = _flat(buffer)
        items = self.parameters_in_order(trainable_only)
        sizes = [math.prod(self._shape(p)) for p in items]
        if flat.numel() != sum(sizes):
            raise ParameterError(
                f"the buffer has {flat.numel()} elements, the parameters have {sum(sizes)}"
            )
        if self._state.parameters.nominal:
            self._complete(trainable_only)
        for parameter, part in zip(items, flat.reshape(-1).split(sizes), strict=True):
            parameter.tensor.copy_(part.view(parameter.tensor.shape))

    def _complete(self, trainable_only: bool) -> None:
        """Give a nominal state tensors of the shapes that the model declares."""
        if trainable_only:
            raise CheckpointError(
                "the state is nominal: give the values of all parameters (trainable_only=False)"
            )
        for parameter in self._state.parameters.in_order():
            parameter.tensor = parameter.tensor.new_zeros(self._shape(parameter))
        self._state.parameters.nominal = False
        self._place()

    def export_model_for_inferencing(
        self, inference_model_uri: str | os.PathLike[str], graph_output_names: Sequence[str]
    ) -> None:
        """Write the evaluation model with the current parameters, cut down to some outputs.

        Raises:
            ModelError: if there is no evaluation model.
            GraphError: if an output is not in the evaluation model, or none is named.
            SaveError: if the file could not be written.
        """
        model = self._model(training=False).clone()
        self._state.parameters.require_values()
        values = {p.name: array_of(p.tensor) for p in self._state.parameters.in_order()}
        save_model(extract(model, graph_output_names, values), inference_model_uri)


def _flat(buffer: Any) -> torch.Tensor:
    """The tensor of a buffer of any kind.

    Raises:
        ParameterError: if it holds no real numbers.
    """
    try:
        wrapped = is_ort_value(buffer)
        flat = OrtValue(buffer).torch() if wrapped else torch.as_tensor(buffer)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ParameterError(
            f"cannot copy a {type(buffer).__name__} to the parameters: {error}\n"
            "  give an OrtValue or an array, as get_contiguous_parameters has it"
        ) from None
    if flat.is_complex():
        raise ParameterError(f"cannot copy {flat.dtype} to the parameters, which are real numbers")
    return flat


def _like(inputs: Sequence[Any], value: Any) -> Any:
    """A result in the kind of the inputs: of torch's tensors first, then arrays, then OrtValues.

    Those in a sequence are of that kind each; maps are dictionaries whatever the inputs are.
    """
    if isinstance(value, list):
        return [_like(inputs, item) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    arrays = any(isinstance(item, np.ndarray) for item in inputs)
    if not arrays and any(map(is_ort_value, inputs)):
        return OrtValue(value)
    if any(isinstance(item, torch.Tensor) for item in inputs):
        return value
    return array_of(value)
