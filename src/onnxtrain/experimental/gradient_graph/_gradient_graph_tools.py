"""From a torch module and a loss to an ONNX model that computes the loss and its gradients."""

from __future__ import annotations

import os
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import onnx
import torch
from torch import Tensor

from onnxtrain.errors import ModelError
from onnxtrain.files.atomic import atomic_write
from onnxtrain.gradients.api import build_gradient_graph

LossFunction = Callable[[Any, Any], Tensor]
_OLDEST = 18
"""The first opset that torch exports."""


def export_gradient_graph(
    model: torch.nn.Module,
    loss_fn: LossFunction,
    example_input: Tensor,
    example_labels: Tensor,
    gradient_graph_path: str | os.PathLike[str],
    opset_version: int = _OLDEST,
) -> None:
    """Write an ONNX model that gives output, loss and the gradient of every parameter.

    Its inputs are ``input``, ``labels`` and the parameters by their names; its outputs ``output``,
    ``loss`` and ``<parameter>_grad`` for those that require gradients. The first axis of input,
    labels and output may have any size. Updating the parameters is left to the caller, so that a
    runtime trains with it that only knows how to run a model and has the gradient operators.

    Args:
        model: The module, exported in training mode; its mode is what it was afterwards.
        loss_fn: Takes output and labels, gives a scalar.
        example_input: An input of the module.
        example_labels: Labels that go with it.
        gradient_graph_path: The file to write.
        opset_version: Opset of the model, 18 at least.

    Raises:
        ModelError: if the opset is older, or the module cannot be exported.
    """
    forward = _exported(model, loss_fn, example_input, example_labels, opset_version)
    wanted = [name for name, value in model.named_parameters() if value.requires_grad]
    trained = build_gradient_graph(forward, wanted, loss="loss")
    atomic_write(pathlib.Path(gradient_graph_path), trained.SerializeToString())


class _WithLoss(torch.nn.Module):
    """A module whose parameters are arguments, with a loss behind it."""

    def __init__(self, model: torch.nn.Module, loss_fn: LossFunction) -> None:
        super().__init__()
        # in a tuple, so that its parameters are not parameters of this module
        self._parts = (model, loss_fn)
        self._names = [name for name, _ in model.named_parameters()]

    def forward(self, given: Tensor, labels: Tensor, parameters: list[Tensor]) -> tuple[Any, Any]:
        model, loss_fn = self._parts
        named = dict(zip(self._names, parameters, strict=True))
        output = torch.func.functional_call(model, named, (given,))
        return output, loss_fn(output, labels)


def _exported(
    model: torch.nn.Module, loss_fn: LossFunction, given: Tensor, labels: Tensor, opset: int
) -> onnx.ModelProto:
    """The forward model with the loss, parameters among its inputs."""
    if opset < _OLDEST:
        raise ModelError(f"cannot export opset {opset}: the oldest is {_OLDEST}")
    names = [name for name, _ in model.named_parameters()]
    parameters = [p.detach().clone() for p in model.parameters()]
    free = {0: torch.export.Dim("batch_size", min=1)}
    mode = model.training
    try:
        with warnings.catch_warnings():
            # of training mode, which is meant, and of names that are given to axes below
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                _WithLoss(model.train(), loss_fn),
                (given, labels, parameters),
                dynamo=True,
                input_names=["input", "labels", *names],
                output_names=["output", "loss"],
                dynamic_shapes=(free, free, [None] * len(parameters)),
                opset_version=opset,
                optimize=False,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise ModelError(f"cannot export {type(model).__name__}: {error}") from error
    finally:
        model.train(mode)
    assert program is not None
    proto = program.model_proto
    for value in (*proto.graph.input[:2], *proto.graph.output[:1]):
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_param = "batch_size"
    return proto
