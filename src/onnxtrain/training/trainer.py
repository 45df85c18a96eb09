"""Trainer: one object from an ONNX file to a trained ONNX file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from onnxtrain.errors import FeedError, OptionError
from onnxtrain.formats.models import save_trained
from onnxtrain.graph.load import ModelLike, load_source
from onnxtrain.kernels.dtypes import array_of
from onnxtrain.onnxblock import Block
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.training import resume
from onnxtrain.training.batch import Batch, on_device, pick, refuse_others, samples
from onnxtrain.training.build import LossLike, build_optimizer, build_training, working_copy
from onnxtrain.training.losses import (
    TorchLoss,
    differentiated,
    loss_outputs,
    torch_function,
    value_of,
)
from onnxtrain.training.module import Module
from onnxtrain.training.optimizer import Optimizer
from onnxtrain.training.runner import Runner
from onnxtrain.transforms.mode import EvaluationForm, TrainingForm
from onnxtrain.transforms.parameters import Decision, decide, settle
from onnxtrain.transforms.training_graph import parameters_to_inputs
from onnxtrain.transforms.write_back import weight_names

BATCH_NORM = ("train", "freeze")


class Trainer:
    """Trains a model.

    Args:
        model: Path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        loss: ``cross_entropy``, ``mse``, ``bce`` or ``l1``; an onnxblock; or a torch function
            ``f(outputs, batch)`` that gives a scalar. None takes the first output as the loss.
        optimizer: ``adamw``, ``sgd``, or an onnxblock optimizer.
        lr: Learning rate.
        trainable: ``auto``, or names and glob patterns of parameters.
        device: ``cpu``, ``cuda``, ``cuda:1``; None takes CUDA if it is there.
        outputs: Outputs of the model that are passed to the loss; all by default for blocks and
            functions, the first one for a loss given by name.
        weight_decay: Decay of AdamW.
        clip_grad_norm: Largest norm of all gradients together; None for no limit.
        batch_norm: ``train`` uses the statistics of the batch, ``freeze`` the saved ones.
        dropout: Whether Dropout nodes saved in inference form drop values in training.
        seed: Seed of everything random in the step.
        deterministic: Whether results are bit-identical from run to run.
    """

    def __init__(
        self,
        model: ModelLike,
        *,
        loss: LossLike | TorchLoss | None,
        optimizer: str | Block = "adamw",
        lr: float = 1e-3,
        trainable: str | Sequence[str] = "auto",
        device: str | None = None,
        outputs: Sequence[str] | None = None,
        weight_decay: float = 0.0,
        clip_grad_norm: float | None = None,
        batch_norm: str = "train",
        dropout: bool = True,
        seed: int | None = None,
        deterministic: bool = False,
    ) -> None:
        if batch_norm not in BATCH_NORM:
            raise OptionError(f"batch_norm is one of {', '.join(BATCH_NORM)}, not {batch_norm!r}")
        self._source = load_source(model)
        self._original = self._source.model
        self._torch_loss = torch_function(loss)
        working = working_copy(self._original)
        self.input_names = [str(value.name) for value in working.graph.inputs]
        self._outputs = loss_outputs(working, loss, outputs)
        writable = weight_names(self._original)
        decisions = decide(working, trainable, self._outputs, known=writable)
        moving = [d.name for d in decisions if d.statistic and d.name in writable]
        self._moving = moving if batch_norm == "train" else []
        built = build_training(
            working,
            loss=None if self._torch_loss else loss,  # type: ignore[arg-type]
            outputs=self._outputs,
            trained=[d.name for d in decisions if d.trained],
            moving=self._moving,
            form=TrainingForm(batch_norm == "train", dropout),
            split=self._torch_loss is not None,
            required=[trainable] if isinstance(trainable, str) else trainable,
        )
        self.decisions: list[Decision] = settle(decisions, built.trained)
        self.mutable = [*built.trained, *self._moving]
        self.loss_input_names = built.loss_inputs
        self.state = built.state()
        self.module = Module(
            built.models.training,
            self.state,
            built.models.evaluation,
            device or ("cuda" if torch.cuda.is_available() else "cpu"),
            SessionOptions(use_deterministic_compute=deterministic, seed=seed),
        )
        self.optimizer = Optimizer(
            build_optimizer(optimizer, working, built.trained, weight_decay, clip_grad_norm),
            self.module,
        )
        self.optimizer.set_learning_rate(lr)
        self._predictor: Runner | None = None

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """The trained parameters: live tensors by name."""
        return {p.name: p.tensor for p in self.state.parameters.in_order(trainable=True)}

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        return self.module.device

    @property
    def steps(self) -> int:
        """Updates made so far."""
        return self.optimizer.steps_taken

    @property
    def lr(self) -> float:
        """Learning rate."""
        return self.optimizer.get_learning_rate()

    @lr.setter
    def lr(self, value: float) -> None:
        self.optimizer.set_learning_rate(value)

    def step(self, batch: Batch) -> torch.Tensor:
        """Forward, backward and update on one batch; gives the loss, on the device."""
        loss = self._forward_backward(batch)
        self.optimizer.step()
        return loss

    def gradients(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Gradients of the loss on one batch, by parameter; nothing is updated."""
        with self._unmoved():
            self._forward_backward(batch)
        return {
            p.name: p.grad_tensor.clone()
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
        """The model's outputs on one batch in evaluation form, by name."""
        if self._predictor is None:
            model = working_copy(self._original)
            parameters_to_inputs(model, {p.name for p in self.state.parameters.in_order()})
            EvaluationForm()(model)
            self._predictor = self.module.runner_of(model)
        results = self._predictor.run(pick(batch, self.input_names))
        names = [str(value.name) for value in self._original.graph.outputs]
        return dict(zip(names, results, strict=True))

    def evaluate(self, batches: Iterable[Batch]) -> float:
        """The mean loss over batches, each weighted by its number of samples."""
        total, count = 0.0, 0
        for batch in batches:
            size = samples(batch)
            total += float(self.loss(batch)) * size
            count += size
        if not count:
            raise FeedError("there is no batch to evaluate")
        return total / count

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the original model with the trained weights in it.

        Raises:
            SaveError: if the file could not be written; what was there before is untouched.
        """
        values = {name: array_of(self.state.parameters[name].tensor) for name in self.mutable}
        save_trained(self._source, values, path)

    def checkpoint(
        self, path: str | os.PathLike[str], extra: Mapping[str, Any] | None = None
    ) -> None:
        """Write everything that is needed to go on later, atomically.

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

    def _forward_backward(self, batch: Batch) -> torch.Tensor:
        """The loss on one batch; the gradients are those of this batch alone."""
        runner = self.module.runner(training=True)
        names = [a.name for a in runner.user_inputs]
        inputs = pick(batch, names)
        function = self._torch_loss
        if function is None:
            refuse_others(batch, names)
            loss: torch.Tensor = runner.run(inputs, reset=True)[0]
            return loss
        given = on_device(batch, self.device)
        return runner.run_split(
            inputs,
            reset=True,
            middle=lambda outputs: differentiated(function, self._outputs, outputs, given),
        )

    @contextlib.contextmanager
    def _unmoved(self) -> Iterator[None]:
        """With: running statistics and random numbers are afterwards what they were before."""
        program = self.module.runner(training=True).program
        generators = [(g, g.get_state()) for g in (program.rng, program.rng_host)]
        moving = [self.state.parameters[name].tensor for name in self._moving]
        before = [tensor.clone() for tensor in moving]
        try:
            yield
        finally:
            for tensor, old in zip(moving, before, strict=True):
                tensor.copy_(old)
            for generator, state in generators:
                generator.set_state(state)


__all__ = ["Batch", "Trainer"]
