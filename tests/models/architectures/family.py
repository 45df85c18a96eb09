"""What the model families have in common: sizes, batches and the way to an ONNX file."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx
import torch
from torch import nn

Inputs = dict[str, torch.Tensor]
Size = Mapping[str, Any]

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is ever fetched: weights are random


@dataclasses.dataclass(frozen=True)
class Family:
    """Models of one kind.

    Attributes:
        module: Makes the torch module of a size.
        inputs: Makes the inputs, by name, for a size, a batch size and a sequence length.
        axes: Axes of each input that are left open, with a name.
        small: Size for tests.
        large: Size for measurements.
        per_token: Whether there are scores (and labels) for every token; they are then the last
            axis, otherwise the second one.
        mixed: Whether the module computes in float32 here and there, whatever its own type is.
        write: Writes the ONNX model of a module, where torch's exporter does not.
    """

    module: Callable[..., nn.Module]
    inputs: Callable[[Size, int, int], Inputs]
    axes: Mapping[str, Mapping[int, str]]
    small: Size
    large: Size
    per_token: bool = False
    mixed: bool = False
    write: Callable[[nn.Module], onnx.ModelProto] | None = None


@dataclasses.dataclass(frozen=True)
class Example:
    """A torch module, its ONNX model, and batches for both."""

    family: Family
    size: Size
    dtype: torch.dtype
    module: nn.Module
    model: onnx.ModelProto

    def batch(self, samples: int, length: int = 8, seed: int = 0) -> Inputs:
        """Inputs of the model."""
        return drawn(self.family, self.size, self.dtype, samples, length, seed)

    def scores(self, inputs: Inputs, module: nn.Module | None = None) -> torch.Tensor:
        """What torch puts out."""
        result = (module or self.module)(**inputs)
        return result if isinstance(result, torch.Tensor) else result.logits

    def labels(self, scores: torch.Tensor, seed: int = 1) -> torch.Tensor:
        """A class for everything that has scores."""
        random = torch.Generator().manual_seed(seed)
        shape = self._per_class(scores).shape
        return torch.randint(0, shape[1], (shape[0], *shape[2:]), generator=random)

    def loss(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy."""
        return nn.functional.cross_entropy(self._per_class(scores), labels)

    def _per_class(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores with the classes as second axis."""
        return scores.movedim(-1, 1) if self.family.per_token else scores


def drawn(
    family: Family, size: Size, dtype: torch.dtype, samples: int, length: int, seed: int
) -> Inputs:
    """Seeded inputs, floating point ones in a type."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inputs = family.inputs(size, samples, length)
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}


def made(family: Family, size: Size, dtype: torch.dtype) -> nn.Module:
    """A module with seeded weights, in evaluation mode."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(7)
        module = family.module(**size)
        _stir(module)
        _settle(module, drawn(family, size, torch.float32, 4, 8, 0))
    return module.to(dtype).eval()


def _stir(module: nn.Module) -> None:
    """Weights that keep the size of what passes through, and nothing all zeros or ones.

    What comes out then depends on what comes in, and a wrong gradient shows.
    """
    for tensor in module.parameters():
        if tensor.ndim > 1:
            fan_in = tensor.numel() / len(tensor)
            tensor.normal_(0, 1.4 / math.sqrt(fan_in))
        else:
            tensor.add_(torch.randn_like(tensor), alpha=0.2)


def _settle(module: nn.Module, inputs: Inputs) -> None:
    """Give batch normalisations the statistics of a batch, as if the model had been trained."""
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
    if not norms:
        return
    for norm in norms:
        norm.momentum = 1.0
    module.train()(**inputs)
    for norm in norms:
        norm.momentum = 0.1


def exported(family: Family, size: Size, module: nn.Module, dtype: torch.dtype) -> onnx.ModelProto:
    """The module as torch's exporter writes it, for any batch size and sequence length."""
    if family.write is not None:
        return family.write(module)
    inputs = drawn(family, size, dtype, 2, 6, 0)
    dims = {name for axes in family.axes.values() for name in axes.values()}
    symbols = {name: torch.export.Dim(name, min=1, max=4096) for name in dims}
    shapes = {
        key: {axis: symbols[name] for axis, name in axes.items()}
        for key, axes in family.axes.items()
    }
    with warnings.catch_warnings(), _quiet("torch.onnx", "transformers"):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            (),
            kwargs=inputs,
            dynamo=True,
            optimize=False,
            verbose=False,
            input_names=list(inputs),
            output_names=["scores"],
            dynamic_shapes=shapes,
        )
    buffer = io.BytesIO()
    onnx.save(program.model_proto, buffer)
    return _opened(onnx.load_from_string(buffer.getvalue()), family)


def _opened(model: onnx.ModelProto, family: Family) -> onnx.ModelProto:
    """Open the axes that the exporter declares fixed although its nodes are not, as with LSTM."""
    for value in model.graph.input:
        for axis, name in family.axes[value.name].items():
            value.type.tensor_type.shape.dim[axis].dim_param = name
    opened = {name for axes in family.axes.values() for name in axes.values()}
    for value in model.graph.output:
        dims = {dim.dim_param for dim in value.type.tensor_type.shape.dim}
        if family.per_token and not opened <= dims:
            value.type.tensor_type.ClearField("shape")
            del model.graph.value_info[:]
    return model


@contextlib.contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """With: these loggers say nothing below an error."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
