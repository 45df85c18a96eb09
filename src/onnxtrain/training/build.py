"""From a prepared model and a loss to the models that a Trainer runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import onnx
import onnx_ir as ir

from onnxtrain import onnxblock
from onnxtrain.errors import LossError
from onnxtrain.transforms.mode import TrainingForm
from onnxtrain.transforms.training_graph import (
    RESET_INPUT,
    TrainingModels,
    build_models,
    build_split_model,
    parameters_to_inputs,
)

LOSSES = {
    "cross_entropy": onnxblock.loss.CrossEntropyLoss,
    "mse": onnxblock.loss.MSELoss,
    "bce": onnxblock.loss.BCEWithLogitsLoss,
    "l1": onnxblock.loss.L1Loss,
}
OPTIMIZERS = ("adamw", "sgd")
LARGE = 1024
"""Frozen tensors above this many bytes are bound like parameters instead of copied around."""

LossLike = str | onnxblock.Block


@dataclasses.dataclass(frozen=True)
class Built:
    """The models, the values of the parameters, and what the loss takes besides the outputs."""

    models: TrainingModels
    parameters: dict[str, ir.TensorProtocol]
    loss_inputs: list[str]


def build_training(
    model: ir.Model,
    *,
    loss: LossLike | None,
    outputs: Sequence[str],
    trained: Sequence[str],
    moving: Sequence[str],
    form: TrainingForm,
    split: bool,
) -> Built:
    """Take the parameters out of a prepared model, add the loss and differentiate.

    Args:
        model: The model; it is changed.
        loss: Name or block; None if the first output is the loss or a function supplies it.
        outputs: Outputs that the loss takes.
        trained: Parameters to train.
        moving: Running statistics that the step updates.
        form: Training form.
        split: Whether the gradients of the outputs come from outside.
    """
    initializers = model.graph.initializers
    moved = {*trained, *moving} | {
        name
        for name, value in initializers.items()
        if value.const_value is not None and value.const_value.nbytes > LARGE
    }
    parameters = {
        name: value.const_value
        for name, value in initializers.items()
        if name in moved and value.const_value is not None
    }
    given = [str(v.name) for v in model.graph.inputs]
    parameters_to_inputs(model, moved)
    if split:
        models = build_split_model(model, trainable=trained, outputs=outputs, form=form)
        return Built(models, parameters, [])
    names = list(outputs)
    if loss is not None:
        model, names = _with_loss(model, loss, outputs)
    models = build_models(model, trainable=trained, outputs=names, form=form)
    known = {*given, *moved, RESET_INPUT}
    added = [str(v.name) for v in models.evaluation.graph.inputs if v.name not in known]
    return Built(models, parameters, added)


def _with_loss(
    model: ir.Model, loss: LossLike, outputs: Sequence[str]
) -> tuple[ir.Model, list[str]]:
    block: Any = LOSSES[loss]() if isinstance(loss, str) else loss
    with onnxblock.base(ir.to_proto(model)) as accessor:
        result = block(*outputs)
        names = [result] if isinstance(result, str) else list(result)
        return ir.from_proto(accessor.model), names


def build_optimizer(
    optimizer: str | Any,
    model: ir.Model,
    trained: Sequence[str],
    weight_decay: float,
    clip_grad_norm: float | None,
) -> onnx.ModelProto:
    """The optimizer model for the trained parameters."""
    block: Any = optimizer
    if isinstance(optimizer, str):
        clip = None if clip_grad_norm is None else onnxblock.optim.ClipGradNorm(clip_grad_norm)
        if optimizer == "adamw":
            block = onnxblock.optim.AdamW(weight_decay=weight_decay, clip_grad=clip)
        elif optimizer == "sgd":
            block = onnxblock.optim.SGD(clip_grad=clip)
        else:
            raise LossError(
                f"unknown optimizer '{optimizer}'\n  have  {', '.join(OPTIMIZERS)}, or an onnxblock"
            )
    inputs = {str(v.name): v for v in model.graph.inputs}
    tensors = [
        onnx.TensorProto(name=name, data_type=int(inputs[name].dtype or 1)) for name in trained
    ]
    imports = model.graph.opset_imports
    with onnxblock.empty_base(imports.get("", imports.get("ai.onnx", 17))):
        block((tensors, []))
        proto: onnx.ModelProto = block.to_model_proto()
        return proto
