"""Blocks that end a model: a forward graph, or a training and an evaluation graph."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import onnx

from onnxtrain.errors import ParameterError
from onnxtrain.graph.names import listed, nearest, trainable
from onnxtrain.onnxblock.block import Block
from onnxtrain.onnxblock.edit import set_outputs
from onnxtrain.onnxblock.values import exists
from onnxtrain.types import DataType

Parameters = tuple[list[onnx.TensorProto], list[onnx.TensorProto]]
"""Trainable and frozen parameters."""


class ForwardBlock(Block):
    """A block whose results are the outputs of a model that can be run as it is."""

    _model: onnx.ModelProto | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build and check the block, and make its results the only outputs of the graph."""
        names = super().__call__(*args, **kwargs)
        set_outputs(self.base, as_tuple(self, names))
        self._model = copy.deepcopy(self.base)
        return names

    def to_model_proto(self) -> onnx.ModelProto:
        """The model as it was when the block had been built.

        Raises:
            RuntimeError: if it has not been built.
        """
        if self._model is None:
            raise RuntimeError(_not_built(self))
        return self._model


class TrainingBlock(Block):
    """A block whose first result is the loss of a model that shall be trained."""

    _models: tuple[onnx.ModelProto, onnx.ModelProto] | None = None
    _parameters: Parameters | None = None
    _wanted: dict[str, bool] | None = None

    def requires_grad(self, argument_name: str, value: bool = True) -> None:
        """Say whether a value is to be trained; a parameter with ``False`` is kept and frozen."""
        self._wanted = {**(self._wanted or {}), argument_name: value}

    def parameters(self) -> Parameters:
        """Trainable and frozen parameters, in the order of the model's initializers.

        Raises:
            RuntimeError: if the block has not been built.
        """
        if self._parameters is None:
            raise RuntimeError(_not_built(self))
        return self._parameters

    def to_model_proto(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """The training model and the evaluation model.

        Raises:
            RuntimeError: if the block has not been built.
        """
        if self._models is None:
            raise RuntimeError(_not_built(self))
        return self._models

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build and check the block, then its gradient.

        The model being edited becomes the training model.

        Raises:
            ParameterError: if a gradient is wanted for a value that does not exist.
        """
        names = super().__call__(*args, **kwargs)
        outputs = as_tuple(self, names)
        model = self.base
        set_outputs(model, outputs)
        trainable, frozen = self._split_names(model)
        self._parameters = _tensors(model, trainable), _tensors(model, frozen)
        self._models = _differentiate(model, trainable, frozen, outputs)
        model.CopyFrom(self._models[0])
        return names

    def _split_names(self, model: onnx.ModelProto) -> tuple[list[str], list[str]]:
        """Names to train and names to freeze: initializers in their order, then other values."""
        wanted = self._wanted or {}
        unknown = [name for name in wanted if wanted[name] and not exists(model, name)]
        if unknown:
            tensors = model.graph.initializer
            known = trainable((tensor.name, DataType(tensor.data_type)) for tensor in tensors)
            raise ParameterError(
                f"cannot give a gradient to '{unknown[0]}': the model has no such value\n"
                f"  have  {nearest(unknown[:1], known)}"
            )
        warn_of([name for name in wanted if not wanted[name] and not exists(model, name)])
        names = in_order(model, wanted)
        kept = {tensor.name for tensor in model.graph.initializer}
        return [n for n in names if wanted[n]], [n for n in names if not wanted[n] and n in kept]


def _differentiate(
    model: onnx.ModelProto, trainable: Sequence[str], frozen: Sequence[str], outputs: Sequence[str]
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Training and evaluation model of a model whose first output is the loss."""
    # Imported here because most blocks need no gradient.
    from onnxtrain.transforms.protos import build_training_models

    return build_training_models(
        model,
        trainable=trainable,
        frozen=frozen,
        loss_output=outputs[0],
        output_names=outputs,
    )


def in_order(model: onnx.ModelProto, names: Iterable[str]) -> list[str]:
    """Names of parameters, each once: initializers in their order, then other values."""
    order = {tensor.name: i for i, tensor in enumerate(model.graph.initializer)}
    return sorted(dict.fromkeys(names), key=lambda name: order.get(name, len(order)))


def _tensors(model: onnx.ModelProto, names: Sequence[str]) -> list[onnx.TensorProto]:
    """Copies of the initializers of those names, in the model's order."""
    return [copy.deepcopy(t) for t in model.graph.initializer if t.name in names]


def as_tuple(block: Block, names: Any) -> tuple[str, ...]:
    """What a block gave, one name or several, as a tuple.

    Raises:
        TypeError: if it gave no name, or something else.
    """
    several = isinstance(names, Iterable) and not isinstance(names, str)
    found = tuple(names) if several else (names,)
    if not found or not all(isinstance(name, str) for name in found):
        raise TypeError(
            f"build of {type(block).__name__} returned {names!r}\n"
            "  return the name of its result or a tuple of names"
        )
    return found


def warn_of(unknown: Sequence[str]) -> None:
    """Tell that parameters which shall be frozen are not there; nothing needs to be done for it."""
    if unknown:
        shown = listed(map(repr, unknown))
        warnings.warn(f"cannot freeze {shown}: the model has no such parameter", stacklevel=4)


def _not_built(block: Block) -> str:
    return (
        f"the models of {type(block).__name__} do not exist yet\n"
        "  call the block inside 'with onnxblock.base(model):' first"
    )
