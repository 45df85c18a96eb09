"""Trainer: one object from an ONNX file to a trained ONNX file."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from onnxtrain.distributed.groups import Groups
from onnxtrain.errors import FeedError, OptionError
from onnxtrain.formats.models import save_trained
from onnxtrain.graph.bindings import dimensions
from onnxtrain.graph.later import collecting_later
from onnxtrain.graph.loading.load import ModelLike, load_source
from onnxtrain.kernels.dtypes import array_of, tensor_of
from onnxtrain.onnxblock import Block
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.ort_value import device_of
from onnxtrain.runtime.profile import Profiler
from onnxtrain.runtime.seeds import seed_of
from onnxtrain.training import resume
from onnxtrain.training.adapters import Adapters
from onnxtrain.training.alike import facts
from onnxtrain.training.batch import Batch, on_device, pick, samples
from onnxtrain.training.build import LossLike, build_optimizer, build_training, working_copy
from onnxtrain.training.checkpoint import Tensors
from onnxtrain.training.given import check_numbers, check_options
from onnxtrain.training.losses import TorchLoss, inside, loss_outputs, torch_function, value_of
from onnxtrain.training.module import Module
from onnxtrain.training.optimizer import Optimizer
from onnxtrain.training.parallel import Shares
from onnxtrain.training.passes import Passes
from onnxtrain.training.precision import computed_in
from onnxtrain.training.runner import Runner
from onnxtrain.training.scaling import Scaling, loss_scale_of
from onnxtrain.training.selection import Selection, asked_for, decided, statistics_in
from onnxtrain.training.whole import WholeStep
from onnxtrain.transforms.lora import LoraConfig
from onnxtrain.transforms.masters import Masters
from onnxtrain.transforms.mode import EvaluationForm, TrainingForm
from onnxtrain.transforms.training_graph import parameters_to_inputs
from onnxtrain.transforms.weights.parameters import Decision
from onnxtrain.transforms.weights.unreached import settled
from onnxtrain.transforms.write_back import weight_names


class Trainer:
    """Trains a model.

    Args:
        model: Path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        loss: A name, such as ``cross_entropy``, ``next_token``, ``mse``, ``bce`` or ``l1`` (an
            unknown one is refused with all there are); an onnxblock; or a torch function
            ``f(outputs, batch)`` that gives a scalar. None takes the first output as the loss.
        optimizer: ``adamw``, ``adam``, ``lamb``, ``sgd``, ``momentum``, or an onnxblock optimizer.
        lr: Learning rate.
        trainable: ``auto``, names and glob patterns of parameters, or a ``Selection``.
        device: ``cpu``, ``cuda``, ``cuda:1``; None takes CUDA if it is there.
        outputs: What is passed to the loss, outputs or values inside of the model; all outputs by
            default for blocks and functions, the first of floating point for a loss given by name.
        weight_decay: Decay of the weights, as the optimizer defines it.
        clip_grad_norm: Largest norm of all gradients together; None for no limit.
        lora: Train low-rank adapters of layers instead of weights; parameters that ``trainable``
            names are trained too, and the statistics of BatchNormalization stay as they are.
        batch_norm: ``train`` uses the statistics of the batch, ``freeze`` the saved ones.
        dropout: Whether Dropout nodes saved in inference form drop values in training.
        seed: Seed of everything random in the step.
        deterministic: Whether results are bit-identical from run to run.
        precision: ``fp32``, or ``bf16`` or ``fp16`` to compute in 16 bits with float32 weights;
            evaluation, and the model that is saved, are those of the original types.
        loss_scale: ``dynamic``, a fixed number, an ``amp.DynamicLossScaler`` whose rules are
            followed, or None; ``auto`` is dynamic for float16. Steps whose gradients overflow are
            skipped.
        fuse: Whether nodes that together are one operator are trained as that operator; the model
            that is saved keeps its nodes.
        recompute: What the backward pass computes again, to keep less: ``cheap`` (what takes hardly
            any time), ``layers`` (all but what they begin with), or None.
        compress: In how many bits values wait for the backward pass: ``exact`` (truth values and
            signs in one), ``pack16``, ``msfp15`` or ``pack8`` (others rounded, too), or None.
        groups: Other processes that train the same model, each on its share of every batch; see
            ``distributed.torch_groups.connect``. All of them must call the same methods.
    """

    @collecting_later()
    def __init__(
        self,
        model: ModelLike,
        *,
        loss: LossLike | TorchLoss | None,
        optimizer: str | Block = "adamw",
        lr: float = 1e-3,
        trainable: str | Sequence[str] | Selection = "auto",
        device: str | None = None,
        outputs: Sequence[str] | None = None,
        weight_decay: float = 0.0,
        clip_grad_norm: float | None = None,
        lora: LoraConfig | None = None,
        batch_norm: str = "train",
        dropout: bool = True,
        seed: int | None = None,
        deterministic: bool = False,
        precision: str = "fp32",
        loss_scale: Scaling = "auto",
        fuse: bool = True,
        recompute: str | None = None,
        compress: str | None = None,
        groups: Groups | None = None,
    ) -> None:
        check_options(batch_norm, lora, groups, clip_grad_norm, lr=lr, weight_decay=weight_decay)
        seed = None if seed is None else seed_of(seed)
        self.shares = None if groups is None or groups.world_size == 1 else Shares(groups)
        place = device or ("cuda" if torch.cuda.is_available() else "cpu")
        scaling = loss_scale_of(loss_scale, precision, device_of(place))
        self._source = load_source(model)
        self._adapters = None if lora is None else Adapters(self._source, lora, seed)
        self._original = self._source.model
        if self._adapters is not None:
            self._original, batch_norm = self._adapters.model, "freeze"
            trainable = self._adapters.trainable(trainable)
        self._torch_loss = torch_function(loss)
        working = working_copy(self._original, named=asked_for(trainable))
        self.input_names = [str(value.name) for value in working.graph.inputs]
        self._outputs = loss_outputs(working, loss, outputs)
        self.output_shapes = {str(v.name): dimensions(v.shape) for v in working.graph.outputs}
        writable = weight_names(self._original)
        decisions, required = decided(working, trainable, self._outputs, writable, outputs)
        trained = [d.name for d in decisions if d.trained]
        self._moving = statistics_in(decisions, writable) if batch_norm == "train" else []
        self._masters = Masters.of(working, trained)
        built = build_training(
            working,
            loss=None if self._torch_loss else loss,  # type: ignore[arg-type]
            outputs=self._outputs,
            trained=trained,
            moving=self._moving,
            form=TrainingForm(batch_norm == "train", dropout),
            split=self._torch_loss is not None,
            required=required,
            compute=computed_in(working, trained, precision),
            scaled=scaling is not None,
            fuse=fuse,
        )
        self.decisions: list[Decision] = settled(decisions, built.trained, self._outputs, level=4)
        self.mutable = [*built.trained, *self._moving]
        self.loss_input_names = built.loss_inputs
        self.state = built.state()
        self.module = Module(
            built.models.training,
            self.state,
            built.models.evaluation,
            place,
            SessionOptions(
                use_deterministic_compute=deterministic,
                seed=seed if self.shares is None else self.shares.seed(seed),
                groups=groups,
                recompute=recompute,
                compress=compress,
            ),
            scaling,
            built=True,
        )
        self.optimizer = Optimizer(
            build_optimizer(optimizer, working, built.trained, weight_decay, clip_grad_norm),
            self.module,
        )
        self.optimizer.set_learning_rate(lr)
        self._passes = Passes(self.module, self._torch_loss, self._outputs, self._moving)
        self._whole = WholeStep(self.module.runner(training=True), self.optimizer)

    @property
    def loss_output_names(self) -> list[str]:
        """Outputs of the model that the loss takes."""
        return list(self._outputs)

    @property
    def lora(self) -> LoraConfig | None:
        """How its adapters are made; None if it trains weights."""
        return None if self._adapters is None else self._adapters.config

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """The trained parameters: live tensors by name; assigning overwrites a value in place."""
        return Tensors(self.state.parameters)

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        return self.module.device

    @property
    def steps(self) -> int:
        """Updates made so far."""
        return self.optimizer.steps_taken

    @property
    def loss_scale(self) -> float | None:
        """By how much the loss is scaled, None if it is not; waits for the device."""
        scaling = self.module.scaling
        return None if scaling is None else float(scaling.scale)

    @property
    def lr(self) -> float:
        """Learning rate."""
        return self.optimizer.get_learning_rate()

    @lr.setter
    def lr(self, value: float) -> None:
        check_numbers(lr=value)
        self.optimizer.set_learning_rate(value)

    def step(self, batch: Batch | Sequence[Batch]) -> torch.Tensor:
        """Forward, backward and update; gives the loss, on the device.

        Several batches are one step over all of their samples: only one of them is in memory at a
        time, and their gradients are averaged, each weighted by its number of samples. So are those
        of several processes; one that has no sample gives an empty list.
        """
        self._start_alike()
        self.module.keep()
        if self.shares is not None:
            loss = self._shared(batch, self.shares)
        elif isinstance(batch, (list, tuple)):
            loss = self._passes.several(batch)
        elif self._torch_loss is None:
            return self._whole.run(self._passes.inputs(batch))  # type: ignore[arg-type]
        else:
            loss = self._passes.one(batch)  # type: ignore[arg-type]
        self.optimizer.step()
        return loss

    def _start_alike(self) -> None:
        """Let all processes begin with the same values."""
        if self.shares is not None:
            tensors = [self.state.parameters[name].tensor for name in self.mutable]
            drawn = () if self._adapters is None else self._adapters.first
            self.shares.start_alike(tensors, lambda: facts(self, self._original, drawn))

    def _shared(self, batch: Batch | Sequence[Batch], shares: Shares) -> torch.Tensor:
        """The loss on the batches of all processes; the gradients are means over them."""
        batches: list[Batch] = [batch] if isinstance(batch, Mapping) else list(batch)
        loss = torch.zeros((), device=self.device)
        if any(map(samples, batches)):
            loss = self._passes.several(batches)
        moving = [self.state.parameters[name].tensor for name in self._moving]
        tensors = [*self._passes.gradients(), *moving]
        return shares.mean(loss, sum(map(samples, batches)), tensors)

    def gradients(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Gradients of the loss on one batch, by parameter; nothing is updated."""
        with self._passes.unmoved():
            self._passes.one(batch)
        scaling = self.module.scaling
        return {
            p.name: p.grad_tensor.clone() if scaling is None else p.grad_tensor / scaling.scale
            for p in self.state.parameters.in_order(trainable=True)
            if p.grad_tensor is not None
        }

    def loss(self, batch: Batch) -> torch.Tensor:
        """The loss on one batch in evaluation form; nothing is changed."""
        runner = self.module.runner(training=False)
        results = runner.run(pick(batch, [a.name for a in runner.user_inputs]))
        if self._torch_loss is None:
            loss: torch.Tensor = results[0]
            return loss
        with torch.no_grad():
            given = on_device(batch, self.device)
            return value_of(self._torch_loss, self._outputs, results, given)

    def predict(self, batch: Batch) -> dict[str, torch.Tensor]:
        """The model's outputs, and what else the loss takes, on one batch in evaluation form."""
        results = self._predictor.run(pick(batch, self.input_names))
        names = [str(value.name) for value in self._predictor.model.graph.outputs]
        return dict(zip(names, results, strict=True))

    @functools.cached_property
    def _predictor(self) -> Runner:
        """Runs the original model with the parameters as they are."""
        model = working_copy(self._original, maps=True, named=self.mutable)
        model.graph.outputs.extend(inside(model.graph, self._outputs))
        Masters.of(model, self._masters.names)
        parameters_to_inputs(model, {p.name for p in self.state.parameters.in_order()})
        EvaluationForm()(model)
        return self.module.runner_of(model)

    def profile(self, batch: Batch, repeats: int = 3) -> Profiler:
        """Times of the nodes of a step on one batch; nothing is updated.

        Raises:
            OptionError: if the loss is a torch function, in whose middle no clock can stand.
        """
        if self._torch_loss is not None:
            raise OptionError("a step with a torch function as its loss cannot be profiled")
        runner = self.module.runner(training=True)
        with self._passes.unmoved():
            return runner.profile(pick(batch, [a.name for a in runner.user_inputs]), repeats)

    def evaluate(self, batches: Iterable[Batch]) -> float:
        """The mean loss over batches, each weighted by its number of samples.

        Several processes evaluate different batches, and get the mean over all of them.
        """
        total, count = 0.0, 0.0
        self._start_alike()
        for batch in batches:
            size = samples(batch)
            total += float(self.loss(batch)) * size
            count += size
        if self.shares is not None:
            total, count = self.shares.sums(total, count)
        if not count:
            raise FeedError("there is no batch to evaluate")
        return total / count

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the original model with the trained weights in it, in inference form.

        Raises:
            SaveError: if the file could not be written; what was there before is untouched.
        """
        if self._adapters is None:
            save_trained(self._source, self._values(), path)
        else:
            self._adapters.save(self._values(), path)

    def save_adapter(
        self, path: str | os.PathLike[str], model: str | os.PathLike[str] | None = None
    ) -> None:
        """Write the trained adapters alone, in the format that onnxruntime loads.

        Args:
            path: The file to write or replace, usually ``*.onnx_adapter``.
            model: Where to write the model that takes such adapters as optional inputs; parameters
                that were trained besides the adapters are in it.

        Raises:
            OptionError: if the trainer has no adapters.
            SaveError: if a file could not be written; what was there before is untouched.
        """
        if self._adapters is None:
            raise OptionError("there is no adapter to save\n  give the trainer lora=LoraConfig()")
        values = self._values()
        self._adapters.save_adapter(values, path)
        if model is not None:
            self._adapters.save_base(values, model)

    def load_adapter(self, path: str | os.PathLike[str]) -> None:
        """Go on from the adapters of a file, which must be for the same layers and of one rank.

        Raises:
            OptionError: if the trainer has no adapters.
            CheckpointError: if the file does not fit; nothing is changed then.
        """
        if self._adapters is None:
            raise OptionError("there are no adapters to load\n  give the trainer lora=LoraConfig()")
        values = self._adapters.loaded(path)
        self._adapters.begin_with(values)
        self.__dict__.pop("_predictor", None)  # was made of the values before
        for name in values.keys() & {p.name for p in self.state.parameters.in_order()}:
            parameter = self.state.parameters[name]
            parameter.data = tensor_of(values[name]).to(parameter.tensor.dtype)

    def _values(self) -> dict[str, Any]:
        """What training changes, as arrays of the types that the model has."""
        values = {name: array_of(self.state.parameters[name].tensor) for name in self.mutable}
        if self._adapters is not None:
            values = {**self._adapters.first, **values}
        return self._masters.stored(values)

    def checkpoint(
        self, path: str | os.PathLike[str], extra: Mapping[str, Any] | None = None
    ) -> None:
        """Write everything that is needed to go on later, atomically.

        Of several processes, all of which must call it, the first one writes.

        Args:
            path: The file to write or replace.
            extra: Values of the caller, as JSON can hold them; ``resume`` gives them back.

        Raises:
            SaveError: if the file could not be written; what was there before is untouched.
        """
        resume.write(self, path, dict(extra or {}))

    def resume(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Go on from a checkpoint; gives what was stored as ``extra``.

        Raises:
            CheckpointError: if it belongs to another model or optimizer; nothing is changed then.
        """
        return resume.read(self, path)
