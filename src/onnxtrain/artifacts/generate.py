"""generate_artifacts: from a forward model to the files that training needs."""

from __future__ import annotations

import enum
import inspect
import os
import pathlib
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from onnxtrain import onnxblock
from onnxtrain.artifacts.as_in_torch import as_in_torch, merged_statistics
from onnxtrain.artifacts.initializers import with_initializers
from onnxtrain.errors import LossError, ParameterError
from onnxtrain.files.atomic import atomic_write
from onnxtrain.formats.names import ArtifactPaths
from onnxtrain.graph.loading.load import load_model, read_model
from onnxtrain.graph.loading.sparse import dense
from onnxtrain.graph.names import listed, nearest
from onnxtrain.graph.names import trainable as could_train
from onnxtrain.graph.unnamed import with_named_sizes
from onnxtrain.graph.verify import verify
from onnxtrain.onnxblock.check import contradiction
from onnxtrain.onnxblock.onnxblock import as_tuple, in_order, warn_of
from onnxtrain.onnxblock.optim.sequences import SEQUENCES_SINCE
from onnxtrain.onnxblock.values import opset_of
from onnxtrain.transforms.patch import patched
from onnxtrain.transforms.precision import Narrowing, narrow_type
from onnxtrain.transforms.protos import build_training_models
from onnxtrain.types import DataType, dtype_name


class LossType(enum.Enum):
    """Losses that ``generate_artifacts`` knows by name; the first four are the reference's."""

    MSELoss = 1
    CrossEntropyLoss = 2
    BCEWithLogitsLoss = 3
    L1Loss = 4
    HuberLoss = 5
    SmoothL1Loss = 6
    KLDivLoss = 7
    BCELoss = 8
    CTCLoss = 9
    ContrastiveLoss = 10
    CosineEmbeddingLoss = 11
    TripletMarginLoss = 12
    InfoNCELoss = 13
    LikelihoodLoss = 14


class OptimType(enum.Enum):
    """Optimizers that ``generate_artifacts`` knows by name; the first two are the reference's."""

    AdamW = 1
    SGD = 2
    Adam = 3
    Lamb = 4


def generate_artifacts(
    model: onnx.ModelProto | str | os.PathLike[str],
    requires_grad: Sequence[str] | None = None,
    frozen_params: Sequence[str] | None = None,
    loss: LossType | onnxblock.Block | None = None,
    optimizer: OptimType | onnxblock.Block | None = None,
    artifact_directory: str | os.PathLike[str] | None = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: str | None = None,
    additional_output_names: list[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: list[str] | None = None,
    precision: str = "fp32",
) -> None:
    """Write the training, evaluation and optimizer models and the checkpoint.

    Args:
        model: The forward model, or its path.
        requires_grad: Parameters to train: initializers, Constant nodes, and constants of bodies
            and functions. One that torch's exporter stored in another form, such as transposed, is
            found by its name in the module, and trained in that form; so is one that several
            modules share by its name in any of them. Of names that all are in the file, each stands
            for all parameters that the exporter merged into it, too.
        frozen_params: Parameters that are exposed but not trained; of names that the model does
            not have (exporters fold weights into others) only a warning tells. Steps move running
            statistics of BatchNormalization that are named here, and no others.
        loss: A loss type, a block that takes the model's outputs, or None if the first output of
            the model is the loss.
        optimizer: An optimizer type, a block, a config of ``onnxtrain.optim``, or None for no
            optimizer model.
        artifact_directory: Where the files go; the current folder by default.
        prefix: What the file names begin with.
        ort_format: Not available; ONNX files are always written.
        custom_op_library: Not available; operators of your own are registered in Python.
        additional_output_names: Values to return after the loss.
        nominal_checkpoint: Also write a checkpoint without values.
        loss_input_names: Values to pass to the loss instead of the model's outputs.
        precision: ``bf16`` or ``fp16`` for a training model that computes in 16 bits with float32
            parameters; one in float16 scales its loss. The evaluation model is as it was.

    Raises:
        RuntimeError: if an argument contradicts another; nothing was written.
        TypeError: if the loss takes another number of values, or the optimizer is unknown.
        ParameterError: if a parameter to train does not exist or has no value.
        LossError: if the loss does not fit the outputs that it is given.
    """
    trainable = _names("requires_grad", requires_grad)
    frozen = _names("frozen_params", frozen_params)
    loss_inputs = _names("loss_input_names", loss_input_names)
    _check_arguments(trainable, frozen, ort_format, custom_op_library, additional_output_names)
    if not isinstance(prefix, str):
        raise RuntimeError(f"prefix must be a string, got {type(prefix).__name__}")
    optimizer_block = _optimizer_block(optimizer)
    if optimizer_block is not None and not trainable:
        raise RuntimeError(
            "an optimizer needs parameters to train\n"
            "  name them in requires_grad, or give no optimizer"
        )
    compute = narrow_type(precision)
    proto = _proto(model)
    source = load_model(proto)
    verify(source)
    proto = with_initializers(_as_read(proto, source), source, {*trainable, *frozen})
    proto, trainable, frozen = as_in_torch(proto, source, trainable, frozen, level=3)
    _check_trainable(proto, trainable)
    if loss is not None:
        proto = with_named_sizes(proto)
    # While something is being built ONNX's checker is not run: many models that run would not pass.
    own = {node.name for node in proto.graph.node}
    with onnxblock.base(proto) as accessor, accessor.building():
        block = _loss_block(loss)
        names = loss_inputs or [output.name for output in proto.graph.output]
        _check_count(block, names)
        outputs = [*as_tuple(block, block(*names)), *(additional_output_names or ())]
        forward = accessor.model
    _check_loss(proto, forward)
    trainable, frozen = in_order(forward, trainable), _known(forward, trainable, frozen)
    added = frozenset(node.name for node in forward.graph.node) - own
    training, evaluation = build_training_models(
        forward,
        trainable=trainable,
        frozen=frozen,
        loss_output=outputs[0],
        output_names=outputs,
        narrowing=None if compute is None else Narrowing(compute, added),
        scaled=compute == DataType.FLOAT16,
    )
    _warn_of_statistics(training, source, {*trainable, *frozen})
    parameters = _parameters(forward, trainable, frozen)
    optimizer_model = None
    if optimizer_block is not None:
        with onnxblock.empty_base(max(opset_of(forward), SEQUENCES_SINCE)):
            optimizer_block(parameters)
            optimizer_model = optimizer_block.to_model_proto()
    paths = ArtifactPaths(pathlib.Path(artifact_directory or "."), prefix)
    _save(paths.training_model, training)
    _save(paths.eval_model, evaluation)
    onnxblock.save_checkpoint(parameters, paths.checkpoint)
    if nominal_checkpoint:
        onnxblock.save_checkpoint(parameters, paths.nominal_checkpoint, nominal_checkpoint=True)
    if optimizer_model is not None:
        _save(paths.optimizer_model, optimizer_model)


def _names(argument: str, given: Iterable[str] | None) -> list[str]:
    """Names as a list; one string would be taken for as many names as it has letters."""
    if isinstance(given, str):
        raise RuntimeError(f"{argument}: give a list of names, not the string {given!r}")
    if given is not None and not isinstance(given, Iterable):
        raise RuntimeError(f"{argument}: give a list of names, not {given!r}")
    names = [] if given is None else list(given)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise RuntimeError(
            f"{argument}: give a list of names, not of {type(wrong[0]).__name__}\n"
            "  as in [tensor.name for tensor in model.graph.initializer]"
        )
    return names


def _check_count(block: onnxblock.Block, names: Sequence[str]) -> None:
    """Refuse a loss that takes more or fewer values than it is given.

    Raises:
        TypeError: if it does.
    """
    takes = inspect.signature(block.build)
    try:
        takes.bind(*names)
    except TypeError:
        raise TypeError(
            f"{type(block).__name__} takes ({', '.join(takes.parameters)}), but is given "
            f"{', '.join(map(repr, names))}\n"
            "  name the values that it shall take in loss_input_names; without it, these are all "
            "outputs of the model"
        ) from None


def _check_arguments(
    trainable: Sequence[str],
    frozen: Sequence[str],
    ort_format: bool,
    custom_op_library: str | None,
    additional_output_names: list[str] | None,
) -> None:
    if both := sorted(set(trainable) & set(frozen)):
        raise RuntimeError(f"parameters both trained and frozen: {', '.join(both)}")
    if ort_format:
        raise RuntimeError("ort_format is not available; the ONNX files serve every runtime")
    if custom_op_library is not None:
        raise RuntimeError(
            "custom_op_library is not available; register kernels with @kernel and gradients "
            "with @gradient instead"
        )
    if additional_output_names is not None and not isinstance(additional_output_names, list):
        raise RuntimeError(
            f"additional_output_names must be a list, got {type(additional_output_names).__name__}"
        )
    _names("additional_output_names", additional_output_names)


def _check_trainable(model: onnx.ModelProto, trainable: Sequence[str]) -> None:
    """Refuse to train what has no value that a checkpoint could hold.

    Raises:
        ParameterError: if an input without a value is to be trained, or whole numbers are.
    """
    values = {tensor.name: DataType(tensor.data_type) for tensor in model.graph.initializer}
    inputs = {value.name for value in model.graph.input} - values.keys()
    if wrong := [name for name in trainable if name in inputs]:
        raise ParameterError(
            f"cannot train {listed(map(repr, wrong))}: an input has no value to start from\n"
            f"  have  {nearest(wrong, could_train(values.items()))}\n"
            "  gradients of inputs are given by onnxtrain.grad(model, wrt=name)"
        )
    for name in trainable:
        if name in values and not values[name].is_floating_point():
            raise ParameterError(
                f"cannot train '{name}': it is {dtype_name(values[name])}, not floating point"
            )


def _check_loss(model: onnx.ModelProto, forward: onnx.ModelProto) -> None:
    """Refuse shapes that contradict each other only since the loss was added.

    Raises:
        LossError: if they do.
    """
    why = contradiction(forward)
    if why is not None and contradiction(model) is None:
        raise LossError(f"the loss does not fit the model: {why}")


def _known(model: onnx.ModelProto, trainable: Sequence[str], frozen: Sequence[str]) -> list[str]:
    """The frozen parameters that the model has; a warning names the others."""
    have = {value.name for value in (*model.graph.initializer, *model.graph.input)}
    known = [name for name in frozen if name in have]
    if not trainable and not known:
        return list(frozen)
    warn_of([name for name in frozen if name not in have])
    return known


def _proto(model: onnx.ModelProto | str | os.PathLike[str]) -> onnx.ModelProto:
    if isinstance(model, onnx.ModelProto):
        return model
    if not isinstance(model, (str, os.PathLike)):
        raise RuntimeError(
            f"model must be an onnx.ModelProto or a path, got {type(model).__name__}"
        )
    read = read_model(model)
    assert read.proto is not None
    return patched(read.proto, {}, read.files) if read.files else read.proto


def _warn_of_statistics(training: onnx.ModelProto, source: ir.Model, named: set[str]) -> None:
    """Tell which running statistics are constants, so that no step moves them.

    Those that the file has as one tensor for several layers are called by its name, unless that is
    named already.
    """
    fixed = {tensor.name for tensor in training.graph.initializer}
    norms = [node for node in training.graph.node if node.op_type == "BatchNormInternal"]
    lying = [name for node in norms for name in node.input[3:5] if name in fixed]
    merged = {n: of for n, of in merged_statistics(source.graph).items() if of not in named}
    names = dict.fromkeys(merged.get(name, name) for name in lying)
    if names:
        shown = ", ".join(map(repr, list(names)[:4]))
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        warnings.warn(
            f"steps do not move the running statistics {shown}{more}, with which the evaluation "
            "model and what is exported normalise; name them in frozen_params to have them moved",
            stacklevel=3,
        )


def _as_read(proto: onnx.ModelProto, source: ir.Model) -> onnx.ModelProto:
    """The protobuf of a model as it was read: dense, and with the domains that need no import."""
    proto = dense(proto)
    own = {opset.domain for opset in proto.opset_import}
    missing = {d: v for d, v in source.graph.opset_imports.items() if d not in own}
    if not missing:
        return proto
    copied = onnx.ModelProto()
    copied.CopyFrom(proto)
    copied.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in missing.items())
    return copied


def _loss_block(loss: Any) -> Any:
    if loss is None:
        return onnxblock.blocks.PassThrough()
    if isinstance(loss, LossType):
        return getattr(onnxblock.loss, loss.name)()
    if isinstance(loss, onnxblock.Block):
        return loss
    raise RuntimeError(
        f"unknown loss {loss!r}\n  have  {', '.join(t.name for t in LossType)}, or a Block"
    )


def _optimizer_block(optimizer: Any) -> Any:
    if optimizer is None:
        return None
    if isinstance(optimizer, OptimType):
        return getattr(onnxblock.optim, optimizer.name)()
    if not isinstance(optimizer, type):
        if hasattr(optimizer, "to_block"):
            return optimizer.to_block()
        if hasattr(optimizer, "to_model_proto"):
            return optimizer
    raise TypeError(
        f"unknown optimizer {optimizer!r}\n  have  {', '.join(t.name for t in OptimType)}, "
        "or a Block with to_model_proto()"
    )


def _parameters(
    model: onnx.ModelProto, trainable: Sequence[str], frozen: Sequence[str]
) -> tuple[list[onnx.TensorProto], list[onnx.TensorProto]]:
    """Trainable and frozen parameters in initializer order; all are frozen if none is named."""
    tensors = list(model.graph.initializer)
    if not trainable and not frozen:
        return [], tensors
    return (
        [t for t in tensors if t.name in trainable],
        [t for t in tensors if t.name in frozen],
    )


def _save(path: str | os.PathLike[str], model: onnx.ModelProto) -> None:
    atomic_write(path, model.SerializeToString())
