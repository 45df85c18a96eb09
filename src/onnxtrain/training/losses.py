"""Losses of a Trainer: which outputs they take, and torch functions as losses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from onnxtrain.errors import LossError
from onnxtrain.onnxblock import Block
from onnxtrain.training.build import LOSSES
from onnxtrain.training.given import check_loss
from onnxtrain.transforms.training_graph import returnable
from onnxtrain.types import FLOATS, TEXT

TorchLoss = Callable[[dict[str, torch.Tensor], dict[str, Any]], torch.Tensor]
"""A function of the model's outputs and the batch, both by name, that gives a scalar."""


def torch_function(loss: Any) -> TorchLoss | None:
    """The loss if it is a torch function, None if it becomes part of the graph.

    Raises:
        LossError: if it is neither.
    """
    if isinstance(loss, str) and loss not in LOSSES:
        raise LossError(
            f"unknown loss '{loss}'\n  have  {', '.join(LOSSES)}, an onnxblock, or a function"
        )
    if loss is None or isinstance(loss, (str, Block)):
        return None
    if callable(loss):
        check_loss(loss)
        found: TorchLoss = loss
        return found
    raise LossError(f"a loss is a name, an onnxblock or a function, not {type(loss).__name__}")


def loss_outputs(model: ir.Model, loss: Any, outputs: Sequence[str] | None) -> list[str]:
    """Values that the loss takes; those inside of the model become outputs of it.

    Raises:
        LossError: if the model has no such value, or no output that a loss could take.
    """
    values = list(dict.fromkeys(model.graph.outputs))
    names = [str(v.name) for v in values]
    if outputs is None:
        if loss is None:
            return names[:1]
        if isinstance(loss, str):
            return [_scores(model.graph, values)]
        return [str(v.name) for v in values if _is_numbers(v)] or names
    if not isinstance(outputs, (str, Iterable)):
        raise LossError(
            f"outputs are names of outputs, not {outputs!r}\n  have  {', '.join(names)}"
        )
    picked = [outputs] if isinstance(outputs, str) else list(dict.fromkeys(outputs))
    inner = inside(model.graph, picked)
    if unknown := [name for name in picked if name not in {*names, *(v.name for v in inner)}]:
        raise LossError(
            f"the model has no output {', '.join(map(repr, unknown))}\n"
            f"{returnable(model.graph, unknown)}"
        )
    if not picked:
        raise LossError("the loss needs an output: the list of outputs is empty")
    model.graph.outputs.extend(inner)
    return picked


def inside(graph: ir.Graph, names: Collection[str]) -> list[ir.Value]:
    """The values with such names that a graph computes and does not return."""
    returned = set(graph.outputs)
    made = [value for node in graph for value in node.outputs if value not in returned]
    return [value for value in made if value.name in names]


def _scores(graph: ir.Graph, outputs: Sequence[ir.Value]) -> str:
    """The first output of floating point, and rather one that the model computes."""
    real = [value for value in outputs if _is_real(value)]
    if not real:
        raise LossError(
            f"no output of the model is a tensor of floating point numbers\n{returnable(graph)}\n"
            "  name the value that the loss takes with outputs="
        )
    return str(next((v for v in real if v.producer() is not None), real[0]).name)


def _is_numbers(value: ir.Value) -> bool:
    """Whether a loss can take an output: sequences and text it cannot."""
    return value.type is None or (isinstance(value.type, ir.TensorType) and value.dtype not in TEXT)


def _is_real(value: ir.Value) -> bool:
    """Whether an output may have a gradient: the labels that classifiers give first do not."""
    return value.type is None or (isinstance(value.type, ir.TensorType) and value.dtype in FLOATS)


def value_of(
    function: TorchLoss, names: Sequence[str], outputs: Sequence[torch.Tensor], batch: Any
) -> torch.Tensor:
    """The value of a torch loss.

    Raises:
        LossError: if it is not a scalar tensor.
    """
    loss = function(dict(zip(names, outputs, strict=True)), batch)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shape = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise LossError(
            f"the loss function must give a scalar tensor, it gave {shape}\n"
            "  reduce it with .mean() or .sum()"
        )
    return loss.reshape(())


def differentiated(
    function: TorchLoss,
    names: Sequence[str],
    outputs: Sequence[torch.Tensor],
    batch: Any,
    scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """A torch loss and its gradient for every output (None for those that can have none).

    With a scale the gradients are those of the loss times the scale.

    Raises:
        LossError: if the loss is not a scalar tensor, or does not depend on the outputs.
    """
    leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in outputs]
    with torch.enable_grad():
        loss = value_of(function, names, leaves, batch)
        if not loss.requires_grad:
            raise LossError(
                "the loss does not depend on the model's outputs "
                f"{', '.join(map(repr, names))} in a differentiable way"
            )
        wanted = [t for t in leaves if t.requires_grad]
        seed = None if scale is None else scale.to(loss.dtype)
        found = iter(torch.autograd.grad(loss, wanted, seed, allow_unused=True))
    grads: list[torch.Tensor | None] = []
    for leaf in leaves:
        grad = next(found) if leaf.requires_grad else None
        grads.append(torch.zeros_like(leaf) if grad is None and leaf.requires_grad else grad)
    return loss.detach(), grads
