"""Trainer: one object from an ONNX file to a trained ONNX file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from onnxtrain.artifacts.models import save_model
from onnxtrain.errors import FeedError, LossError, ParameterError
from onnxtrain.graph.load import ModelLike, load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.kernels.dtypes import array_of, tensor_of
from onnxtrain.onnxblock import Block
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.training import resume
from onnxtrain.training.build import LOSSES, LossLike, build_optimizer, build_training
from onnxtrain.training.checkpoint import CheckpointState, Parameter
from onnxtrain.training.module import Module
from onnxtrain.training.optimizer import Optimizer
from onnxtrain.transforms.mode import TrainingForm
from onnxtrain.transforms.parameters import Decision, decide
from onnxtrain.transforms.write_back import weight_names, write_back

Batch = Mapping[str, Any]
TorchLoss = Callable[[dict[str, torch.Tensor], dict[str, Any]], torch.Tensor]


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
        self._original = load_model(model)
        if batch_norm not in ("train", "freeze"):
            raise ValueError(f"batch_norm must be 'train' or 'freeze', not {batch_norm!r}")
        self._torch_loss = _torch_loss(loss)
        working = prepare(self._original.clone())
        self._outputs = _loss_outputs(working, loss, outputs)
        self.decisions: list[Decision] = decide(
            working, trainable, self._outputs, known=weight_names(self._original)
        )
        trained = [d.name for d in self.decisions if d.trained]
        moving = [d.name for d in self.decisions if d.statistic and batch_norm == "train"]
        self.mutable = [*trained, *moving]
        self.input_names = [
            str(v.name) for v in working.graph.inputs if v.name not in working.graph.initializers
        ]
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        built = build_training(
            working,
            loss=None if self._torch_loss else loss,  # type: ignore[arg-type]
            outputs=self._outputs,
            trained=trained,
            moving=moving,
            form=TrainingForm(batch_norm == "train", dropout),
            split=self._torch_loss is not None,
        )
        self.state = _state(self._original, working, built.parameters, trained)
        options = SessionOptions(use_deterministic_compute=deterministic, seed=seed)
        self.module = Module(
            built.models.training, self.state, built.models.evaluation, device, options
        )
        self.loss_input_names = built.loss_inputs
        self.optimizer = Optimizer(
            build_optimizer(optimizer, working, trained, weight_decay, clip_grad_norm),
            self.module,
        )
        self.optimizer.set_learning_rate(lr)
        self._evaluation: Module | None = None

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
        self.module.lazy_reset_grad()
        loss = self._forward_backward(batch)
        self.optimizer.step()
        return loss

    def gradients(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Gradients of the loss on one batch, by parameter; nothing is updated."""
        self.module.lazy_reset_grad()
        before = {name: self.state.parameters[name].tensor.clone() for name in self._moving()}
        self._forward_backward(batch)
        for name, tensor in before.items():
            self.state.parameters[name].tensor.copy_(tensor)
        return {
            p.name: p.grad_tensor.clone()
            for p in self.state.parameters.in_order(trainable=True)
            if p.grad_tensor is not None
        }

    def loss(self, batch: Batch) -> torch.Tensor:
        """The loss on one batch in evaluation form; nothing is changed."""
        results = self._evaluate(batch)
        if self._torch_loss is None:
            return results[0]
        return _scalar(
            self._torch_loss(
                dict(zip(self._outputs, results, strict=True)), _on(batch, self.device)
            )
        )

    def predict(self, batch: Batch) -> dict[str, torch.Tensor]:
        """The model's outputs on one batch in evaluation form, by name."""
        names = [str(v.name) for v in self._original.graph.outputs]
        return dict(
            zip(
                names,
                self._predictor()
                .runner(training=False)
                .run([_need(batch, name) for name in self.input_names]),
                strict=True,
            )
        )

    def evaluate(self, batches: Iterable[Batch]) -> float:
        """The mean loss over batches, each weighted by its number of samples."""
        total, count = 0.0, 0
        for batch in batches:
            size = _samples(batch)
            total += float(self.loss(batch)) * size
            count += size
        if not count:
            raise FeedError("there is no batch to evaluate")
        return total / count

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the original model with the trained weights in it."""
        values = {name: array_of(self.state.parameters[name].tensor) for name in self.mutable}
        save_model(write_back(self._original.clone(), values), path)

    def checkpoint(
        self, path: str | os.PathLike[str], extra: Mapping[str, Any] | None = None
    ) -> None:
        """Write everything that is needed to go on later, atomically."""
        resume.write(self, path, dict(extra or {}))

    def resume(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Go on from a checkpoint; gives what was stored as ``extra``."""
        return resume.read(self, path)

    def _moving(self) -> list[str]:
        return [d.name for d in self.decisions if d.statistic and d.name in self.mutable]

    def _forward_backward(self, batch: Batch) -> torch.Tensor:
        runner = self.module.runner(training=True)
        reset = self.module.take_reset()
        inputs = [_need(batch, a.name) for a in runner.user_inputs]
        if self._torch_loss is None:
            self._check_names(batch, [a.name for a in runner.user_inputs])
            result: torch.Tensor = runner.run(inputs, reset)[0]
            return result
        outputs, running = runner.program.start(*runner.arguments(inputs, reset))
        loss, grads = self._differentiate(outputs, batch)
        runner.program.finish(running, grads)
        return loss

    def _differentiate(
        self, outputs: Sequence[torch.Tensor], batch: Batch
    ) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        """The torch loss and its gradient for every output."""
        assert self._torch_loss is not None
        leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in outputs]
        with torch.enable_grad():
            named = dict(zip(self._outputs, leaves, strict=True))
            loss = _scalar(self._torch_loss(named, _on(batch, self.device)))
            if not loss.requires_grad:
                raise LossError("the loss does not depend on the model's outputs")
            wanted = [t for t in leaves if t.requires_grad]
            found = iter(torch.autograd.grad(loss, wanted, allow_unused=True))
        grads: list[torch.Tensor | None] = []
        for leaf in leaves:
            grad = next(found) if leaf.requires_grad else None
            grads.append(torch.zeros_like(leaf) if grad is None and leaf.requires_grad else grad)
        return loss.detach(), grads

    def _check_names(self, batch: Batch, wanted: Sequence[str]) -> None:
        if unknown := sorted(set(batch) - set(wanted)):
            raise FeedError(
                f"the batch has {', '.join(map(repr, unknown))}, which the step does not take\n"
                f"  it takes  {', '.join(wanted)}"
            )

    def _evaluate(self, batch: Batch) -> list[torch.Tensor]:
        runner = self.module.runner(training=False)
        return runner.run([_need(batch, a.name) for a in runner.user_inputs])

    def _predictor(self) -> Module:
        """A module over the same parameters whose evaluation model has the original outputs."""
        if self._evaluation is None:
            self._evaluation = self.module.with_evaluation(self._plain_evaluation())
        return self._evaluation

    def _plain_evaluation(self) -> ir.Model:
        from onnxtrain.transforms.mode import EvaluationForm
        from onnxtrain.transforms.training_graph import parameters_to_inputs

        model = prepare(self._original.clone())
        parameters_to_inputs(model, {p.name for p in self.state.parameters.in_order()})
        EvaluationForm()(model)
        return model


def _torch_loss(loss: Any) -> TorchLoss | None:
    if loss is None or isinstance(loss, (str, Block)):
        if isinstance(loss, str) and loss not in LOSSES:
            raise LossError(
                f"unknown loss '{loss}'\n  have  {', '.join(LOSSES)}, an onnxblock, or a function"
            )
        return None
    if callable(loss):
        found: TorchLoss = loss
        return found
    raise LossError(f"a loss is a name, an onnxblock or a function, not {type(loss).__name__}")


def _loss_outputs(model: ir.Model, loss: Any, outputs: Sequence[str] | None) -> list[str]:
    names = [str(v.name) for v in model.graph.outputs]
    if outputs is None:
        return names[:1] if loss is None or isinstance(loss, str) else names
    if unknown := [name for name in outputs if name not in names]:
        raise LossError(
            f"the model has no output {', '.join(map(repr, unknown))}\n  have  {', '.join(names)}"
        )
    return list(outputs)


def _state(
    original: ir.Model,
    working: ir.Model,
    names: Mapping[str, ir.TensorProtocol],
    trained: Sequence[str],
) -> CheckpointState:
    """Live tensors for the parameters, copied from the model."""
    return CheckpointState(
        {
            name: Parameter(name, tensor_of(tensor.numpy().copy()), name in trained)
            for name, tensor in names.items()
        }
    )


def _scalar(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shape = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise LossError(f"the loss function must give a scalar tensor, it gave {shape}")
    return loss.reshape(())


def _need(batch: Batch, name: str) -> Any:
    if name not in batch:
        raise FeedError(f"the batch has no '{name}'\n  it has  {', '.join(batch) or 'nothing'}")
    return batch[name]


def _on(batch: Batch, device: torch.device) -> dict[str, Any]:
    return {
        name: (value if isinstance(value, torch.Tensor) else torch.as_tensor(value)).to(device)
        for name, value in batch.items()
    }


def _samples(batch: Batch) -> int:
    sizes = [len(v) for v in batch.values() if getattr(v, "ndim", 0) or isinstance(v, list)]
    return sizes[0] if sizes else 1


__all__ = ["Batch", "ParameterError", "Trainer"]
