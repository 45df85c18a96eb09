"""Bytes alive during a step, from the plan and the shapes of one batch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from onnxtrain.cli.sizes import Sizes
from onnxtrain.graph import schemas
from onnxtrain.graph.inference.infer import infer_node
from onnxtrain.runtime.lifetimes import live_bytes
from onnxtrain.training.trainer import Trainer

_GRADIENT = re.compile(r"_grad(_\d+)?$")
"""How the name of a gradient, or of a part of one, ends."""


def over_the_step(
    trainer: Trainer, batch: Mapping[str, Any]
) -> tuple[list[tuple[str, int]], list[str]]:
    """Node and bytes held after it, what is bound included; and what no shape is known of."""
    runner = trainer.module.runner(training=True)
    model = runner.model.clone()
    put_sizes(model, {name: tuple(array.shape) for name, array in batch.items()})
    _infer_again(model)
    sizes = Sizes(model, runner.plan)
    held = live_bytes(runner.plan.block, sizes.of)
    return [(step.node, sizes.bound + count) for step, count in held], sizes.unknown


def _infer_again(model: ir.Model) -> None:
    """Find shapes that only the sizes of the inputs tell; a gradient has that of its value."""
    schemas.ensure_registered()
    values: dict[str, ir.Value] = {str(value.name): value for value in model.graph.inputs}
    for node in model.graph:
        if not all(map(_is_sized, node.outputs)):
            infer_node(node, model.graph.opset_imports)
        for value in node.outputs:
            like = values.get(_GRADIENT.sub("", str(value.name)))
            if not _is_sized(value) and like is not None and _is_sized(like):
                value.shape = like.shape
            values[str(value.name)] = value


def _is_sized(value: ir.Value) -> bool:
    return value.shape is not None and all(isinstance(dim, int) for dim in value.shape)


def put_sizes(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Replace named dimensions everywhere by the sizes that inputs of these shapes give them."""
    known: dict[str, int] = {}
    for value in model.graph.inputs:
        for dim, size in zip(value.shape or (), shapes.get(str(value.name), ()), strict=False):
            if not isinstance(dim, int) and dim.value:
                known[dim.value] = size
    values = [*model.graph.inputs, *(v for node in model.graph for v in node.outputs)]
    for value in values:
        if value.shape is not None:
            dims = [d if isinstance(d, int) else known.get(d.value or "", d) for d in value.shape]
            value.shape = ir.Shape(dims)
