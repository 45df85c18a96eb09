"""The training graph for callers that hold protobuf models."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from onnxtrain.errors import LossError
from onnxtrain.gradients.pool import spread_without_shapes
from onnxtrain.graph import maps
from onnxtrain.transforms.fusion.fuse import split_sequences
from onnxtrain.transforms.precision import Narrowing
from onnxtrain.transforms.training_graph import (
    build_models,
    initializers_as_constants,
    parameters_to_inputs,
)


def build_training_models(
    model: onnx.ModelProto,
    *,
    trainable: Sequence[str],
    frozen: Sequence[str],
    loss_output: str,
    output_names: Sequence[str],
    narrowing: Narrowing | None = None,
    scaled: bool = False,
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Training and evaluation model of a forward model with a loss.

    Args:
        model: The forward model; it is not changed.
        trainable: Initializers (or inputs) to train.
        frozen: Initializers that become inputs but are not trained. If both are empty, every
            initializer becomes an input.
        loss_output: Name of the loss.
        output_names: All outputs, the loss first.
        narrowing: How the training model computes in 16 bits.
        scaled: Whether the training model has an input ``loss_scale``.

    Raises:
        LossError: if the loss is not the first output.
    """
    if not output_names or output_names[0] != loss_output:
        raise LossError(f"loss '{loss_output}' must be the first output, got {list(output_names)}")
    working = initializers_as_constants(maps.read(model))
    moved = {*trainable, *frozen} or set(working.graph.initializers)
    parameters_to_inputs(working, moved)
    models = build_models(
        working,
        trainable=list(trainable),
        outputs=list(output_names),
        narrowing=narrowing,
        fusion=split_sequences,
        scaled=scaled,
    )
    spread_without_shapes(models.training.graph)
    return maps.written(models.training), maps.written(models.evaluation)
