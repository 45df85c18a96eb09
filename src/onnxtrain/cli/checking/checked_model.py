"""A user's model in the form that is trained, with its parameters as inputs, to be checked."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from onnxtrain.cli.checking.doubles import in_type
from onnxtrain.errors import GraphError, LossError, ParameterError
from onnxtrain.gradients.engine import can_carry_gradient
from onnxtrain.graph.loading.load import load_source
from onnxtrain.training.build import working_copy
from onnxtrain.transforms.mode import EvaluationForm, TrainingForm
from onnxtrain.transforms.training_graph import parameters_to_inputs, set_outputs
from onnxtrain.transforms.weights.parameters import decide
from onnxtrain.transforms.write_back import weight_names
from onnxtrain.types import FLOATS, DataType, type_string

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class CheckedModel:
    """What is differentiated, and by what.

    Attributes:
        model: The model; parameters are inputs.
        parameters: Values of the parameters.
        data: The other inputs by name.
        names: Inputs whose gradients are checked.
        ys: Outputs that are differentiated.
    """

    model: ir.Model
    parameters: Mapping[str, Array]
    data: Mapping[str, ir.Value]
    names: list[str]
    ys: list[str]


def checked_model(
    path: pathlib.Path, loss: str | None, dtype: DataType, *, with_inputs: bool
) -> CheckedModel:
    """Read a model and make it ready to be compared in one floating point type.

    A model without trainable parameters is checked by its inputs.

    Raises:
        GraphError: if some operator does not take the type.
        LossError: if there is nothing to differentiate.
        ParameterError: if there is nothing to differentiate by.
    """
    original = load_source(path).model
    working = working_copy(original)
    _keep_outputs(working, loss)
    trained = _trained(working, weight_names(original))
    EvaluationForm()(working)
    TrainingForm()(working)
    _convert(working, dtype, trained)
    values = {name: working.graph.initializers[name].const_value for name in trained}
    parameters = {name: t.numpy().copy() for name, t in values.items() if t is not None}
    data = {str(v.name): v for v in working.graph.inputs if not v.is_initializer()}
    parameters_to_inputs(working, parameters)
    names = list(parameters)
    if with_inputs or not names:
        names += [name for name, value in data.items() if value.dtype == dtype]
    if not names:
        raise ParameterError(
            "nothing to differentiate by: the model has neither trainable parameters nor "
            "floating point inputs"
        )
    ys = [str(value.name) for value in working.graph.outputs]
    return CheckedModel(working, parameters, data, names, ys)


def _trained(model: ir.Model, known: Collection[str]) -> list[str]:
    """Weights that are trained; those stored as whole numbers move in steps, not by differences."""
    try:
        names = [d.name for d in decide(model, known=known) if d.trained]
    except ParameterError:
        return []
    return [name for name in names if model.graph.initializers[name].dtype in FLOATS]


def _convert(model: ir.Model, dtype: DataType, trained: Collection[str]) -> None:
    try:
        in_type(model, dtype, trained)
    except GraphError as error:
        if dtype == DataType.FLOAT:
            raise
        raise GraphError(f"{error}\n  compare in float with --float") from error


def _keep_outputs(model: ir.Model, loss: str | None) -> None:
    """Return what is differentiated, and nothing else."""
    graph = model.graph
    if loss is not None:
        set_outputs(graph, [loss])
    names = [str(value.name) for value in graph.outputs if can_carry_gradient(value)]
    if not names:
        named = [f"'{v.name}' ({type_string(v.type)})" for v in graph.outputs]
        shown = ", ".join(named) or "a model without outputs"
        raise LossError(
            f"{shown} cannot be differentiated: no floating point tensor\n"
            "  name an inner value with --loss"
        )
    set_outputs(graph, list(dict.fromkeys(names)))
