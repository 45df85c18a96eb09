"""A training model in float32 that comes to compute in 16 bits.

What was differentiated in float32 cannot be narrowed node by node: losses stay in float32, and all
of the backward pass comes behind the loss. The backward pass is taken away and built anew.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnxtrain.errors import OptionError
from onnxtrain.transforms.precision import Narrowing
from onnxtrain.transforms.precision_copies import read_copies
from onnxtrain.transforms.training_graph import (
    BUFFER_SUFFIX,
    FLAG_SUFFIX,
    RESET_INPUT,
    SCALE_INPUT,
    build_models,
    set_outputs,
)
from onnxtrain.types import DataType, dtype_name


def narrow_training(model: ir.Model, dtype: DataType, parameters: Collection[str]) -> ir.Model:
    """Let a prepared training model compute in bfloat16 or float16, in place.

    Its inputs and outputs stay what they are, but that one in float16 has an input for the scale of
    the loss, and that it reads copies of parameters where it would cast them.

    Raises:
        OptionError: if the model trains no parameter in float32, or has a scale already.
        NoGradientError: if an operator of the forward pass has no gradient rule.
    """
    graph = model.graph
    inputs = {str(value.name): value for value in graph.inputs}
    trained = [n.removesuffix(BUFFER_SUFFIX) for n in inputs if n.endswith(BUFFER_SUFFIX)]
    _check(inputs, trained, dtype)
    outputs = [str(v.name) for v in graph.outputs if not str(v.name).endswith(FLAG_SUFFIX)]
    set_outputs(graph, outputs)
    for name in (RESET_INPUT, *(f"{name}{BUFFER_SUFFIX}" for name in trained)):
        graph.inputs.remove(inputs[name])
    scaled = dtype == DataType.FLOAT16
    narrowing = Narrowing(dtype)
    build_models(model, trainable=trained, outputs=outputs, narrowing=narrowing, scaled=scaled)
    read_copies(model, parameters)
    return model


def _check(inputs: dict[str, ir.Value], trained: list[str], dtype: DataType) -> None:
    if SCALE_INPUT in inputs:
        raise OptionError(
            "the training model has a loss scale, so it computes in 16 bits already\n"
            "  leave the precision out"
        )
    types = {inputs[name].dtype for name in trained if name in inputs} - {None}
    if DataType.FLOAT not in types:
        has = ", ".join(sorted(dtype_name(t) for t in types if t is not None)) or "no type"
        raise OptionError(
            f"precision in {dtype_name(dtype)} is for training models in float32, "
            f"the parameters that this one trains have {has}\n  leave the precision out"
        )
