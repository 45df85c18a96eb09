"""From a model, a loss and a choice of parameters to the models that a Trainer runs."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from onnxtrain import onnxblock
from onnxtrain.errors import LossError, OnnxTrainError, OptionError
from onnxtrain.graph.bindings import onnx_opset
from onnxtrain.graph.inference.skeleton import skeleton
from onnxtrain.graph.prepare import prepare
from onnxtrain.graph.unnamed import name_sizes
from onnxtrain.graph.verify import verify
from onnxtrain.graph.walk import all_graphs
from onnxtrain.kernels.dtypes import tensor_of
from onnxtrain.onnxblock.onnxblock import as_tuple
from onnxtrain.onnxblock.optim.sequences import SEQUENCES_SINCE
from onnxtrain.training.checkpoint import CheckpointState, Parameter
from onnxtrain.transforms.fusion import Fusion
from onnxtrain.transforms.graft import grafted
from onnxtrain.transforms.map_outputs import maps_as_tensors
from onnxtrain.transforms.mode import TrainingForm
from onnxtrain.transforms.padded_biases import hold_padding
from onnxtrain.transforms.precision import Narrowing
from onnxtrain.transforms.precision_copies import read_copies
from onnxtrain.transforms.qdq_form import as_qdq
from onnxtrain.transforms.training_graph import (
    RESET_INPUT,
    TrainingModels,
    build_models,
    build_split_model,
    initializers_as_constants,
    parameters_to_inputs,
)
from onnxtrain.transforms.weights.parameters import lift_weights
from onnxtrain.types import FIXED, DataType

LOSSES = {
    "cross_entropy": onnxblock.loss.CrossEntropyLoss,
    "token_cross_entropy": onnxblock.loss.TokenCrossEntropyLoss,
    "next_token": onnxblock.loss.NextTokenLoss,
    "mse": onnxblock.loss.MSELoss,
    "bce": onnxblock.loss.BCEWithLogitsLoss,
    "l1": onnxblock.loss.L1Loss,
    "huber": onnxblock.loss.HuberLoss,
    "smooth_l1": onnxblock.loss.SmoothL1Loss,
    "kl_div": onnxblock.loss.KLDivLoss,
    "likelihood": onnxblock.loss.LikelihoodLoss,
}
OPTIMIZERS: dict[str, Any] = {
    # by torch's formula; the block's own settings are those of onnxruntime-training
    "adamw": functools.partial(onnxblock.optim.AdamW, eps=1e-8, adam_mode=0),
    "sgd": onnxblock.optim.SGD,
    "adam": onnxblock.optim.Adam,
    "lamb": onnxblock.optim.Lamb,
    "momentum": functools.partial(onnxblock.optim.SGD, momentum=0.9),
}
LARGE = 2**16
"""Frozen tensors above this many bytes are bound like parameters instead of copied around."""

LossLike = str | onnxblock.Block


@dataclasses.dataclass(frozen=True)
class Built:
    """The models, the values of the parameters, and what the loss takes besides the outputs."""

    models: TrainingModels
    parameters: dict[str, ir.TensorProtocol]
    loss_inputs: list[str]
    fusion: Fusion | None = None

    @property
    def trained(self) -> list[str]:
        """Parameters that are trained."""
        return self.models.trained

    def state(self) -> CheckpointState:
        """Live tensors for the parameters, copied from the model."""
        trained = set(self.trained)
        return CheckpointState(
            {
                name: Parameter(name, tensor_of(tensor.numpy().copy()), name in trained)
                for name, tensor in self.parameters.items()
            }
        )


def working_copy(
    original: ir.Model, *, maps: bool = False, named: Collection[str] = ()
) -> ir.Model:
    """A prepared copy of a model, to be changed; weights in bodies are initializers of it.

    So are other tensors of bodies that are ``named``. Outputs that are maps become tensors, unless
    ``maps`` are to be kept.
    """
    verify(original)
    model = _small_in_memory(initializers_as_constants(original.clone()))
    name_sizes(model)
    prepared = as_qdq(prepare(lift_weights(model, named)))
    return prepared if maps else maps_as_tensors(prepared)


def _small_in_memory(model: ir.Model) -> ir.Model:
    """Read small tensors that lie outside the file: shapes and axes must be known."""
    for graph in all_graphs(model.graph):
        for value in graph.initializers.data.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) and tensor.nbytes <= LARGE:
                value.const_value = ir.Tensor(tensor.numpy().copy(), tensor.dtype, name=value.name)
    return model


def build_training(
    model: ir.Model,
    *,
    loss: LossLike | None,
    outputs: Sequence[str],
    trained: Sequence[str],
    moving: Sequence[str],
    form: TrainingForm,
    split: bool,
    required: Collection[str] = (),
    compute: DataType | None = None,
    scaled: bool = False,
    fuse: bool = False,
) -> Built:
    """Take the parameters out of a prepared model, add the loss and differentiate.

    Args:
        model: The model; it is changed.
        loss: Name or block; None if the first output is the loss or a function supplies it.
        outputs: Outputs that the loss takes.
        trained: Parameters to train; one that the loss does not depend on is left out.
        moving: Running statistics that the step updates.
        form: Training form.
        split: Whether the gradients of the outputs come from outside.
        required: Trained parameters that the loss must depend on.
        compute: Type of 16 bits in which the training model computes; None for its own.
        scaled: Whether the gradients are those of a loss that is scaled.
        fuse: Whether nodes of the training model that are one operator become it.

    Raises:
        LossError: if the loss cannot be added, or is not a floating point scalar.
        NoGradientError: if an operator in the way has no gradient rule.
        ParameterError: if the loss depends on none of the parameters, or not on a required one.
    """
    _small_in_memory(initializers_as_constants(model))
    hold_padding(model, trained)
    changing = {*trained, *moving}
    moved = changing | _large(model.graph.initializers)
    parameters = {
        name: value.const_value
        for name, value in model.graph.initializers.items()
        if name in moved and value.const_value is not None
    }
    given = [str(v.name) for v in model.graph.inputs]
    parameters_to_inputs(model, moved)
    own = {node.name for node in model.graph}
    names = list(outputs)
    if loss is not None and not split:
        model, names = _with_loss(model, loss, outputs)
    added_nodes = {str(node.name) for node in model.graph} - own
    fixed = {name: value for name, value in parameters.items() if name not in changing}
    fusion = Fusion(fixed) if fuse else None
    options: dict[str, Any] = {
        "trainable": trained,
        "outputs": names,
        "form": form,
        "optional": set(trained) - set(required),
        "narrowing": None if compute is None else Narrowing(compute, frozenset(added_nodes)),
        "fusion": fusion,
    }
    if split:
        models = build_split_model(model, **options)
        read_copies(models.training, moved)
        return Built(models, parameters, [], fusion)
    models = build_models(model, scaled=scaled, **options)
    read_copies(models.training, moved)
    known = {*given, *moved, RESET_INPUT}
    added = [str(v.name) for v in models.evaluation.graph.inputs if v.name not in known]
    return Built(models, parameters, added, fusion)


def _large(initializers: Mapping[str, ir.Value]) -> set[str]:
    """Names of tensors that torch can hold and that are too large to be copied around."""
    tensors = {name: value.const_value for name, value in initializers.items()}
    return {
        name
        for name, tensor in tensors.items()
        if tensor is not None and tensor.dtype in FIXED and tensor.nbytes > LARGE
    }


def _with_loss(
    model: ir.Model, loss: LossLike, outputs: Sequence[str]
) -> tuple[ir.Model, list[str]]:
    """The model with a loss behind its outputs, and the names that the loss gives."""
    block: Any = LOSSES[loss]() if isinstance(loss, str) else loss
    name = loss if isinstance(loss, str) else type(loss).__name__
    # While something is being built ONNX's checker is not run: many models that run would not pass.
    proto = skeleton(model, small=math.inf)
    with onnxblock.base(proto) as accessor, accessor.building():
        try:
            names = as_tuple(block, block(*outputs))
        except OnnxTrainError:
            raise
        except Exception as error:
            raise LossError(
                f"loss '{name}' cannot be built on {', '.join(map(repr, outputs))}: {error}"
            ) from error
        return grafted(model, proto, accessor.model), list(names)


def build_optimizer(
    optimizer: str | Any,
    model: ir.Model,
    trained: Sequence[str],
    weight_decay: float,
    clip_grad_norm: float | None,
) -> onnx.ModelProto:
    """The optimizer model for the trained parameters.

    Raises:
        OptionError: if there is no such optimizer, or it does not take an option.
    """
    block = _optimizer_block(optimizer, weight_decay, clip_grad_norm)
    inputs = {str(v.name): v for v in model.graph.inputs}
    tensors = [
        onnx.TensorProto(name=name, data_type=int(inputs[name].dtype or 1)) for name in trained
    ]
    opset = max(onnx_opset(model.graph.opset_imports, default=17), SEQUENCES_SINCE)
    with onnxblock.empty_base(opset):
        block((tensors, []))
        proto: onnx.ModelProto = block.to_model_proto()
        return proto


def _optimizer_block(optimizer: str | Any, weight_decay: float, limit: float | None) -> Any:
    if not isinstance(optimizer, str):
        if isinstance(optimizer, type) or not hasattr(optimizer, "to_model_proto"):
            what = f"the class {optimizer.__name__}" if isinstance(optimizer, type) else None
            raise OptionError(
                f"an optimizer is one of {', '.join(OPTIMIZERS)} or an onnxblock optimizer, "
                f"not {what or type(optimizer).__name__}"
            )
        if weight_decay or limit is not None:
            raise OptionError("give weight_decay and clip_grad_norm to the optimizer block itself")
        return optimizer
    clip = None if limit is None else onnxblock.optim.ClipGradNorm(limit)
    if optimizer not in OPTIMIZERS:
        raise OptionError(
            f"unknown optimizer '{optimizer}'\n  have  {', '.join(OPTIMIZERS)}, or an onnxblock"
        )
    return OPTIMIZERS[optimizer](weight_decay=weight_decay, clip_grad=clip)
