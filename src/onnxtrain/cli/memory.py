"""Bytes alive during a step, from the plan and the shapes of one batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from onnxtrain.cli.sizes import Sizes
from onnxtrain.runtime.lifetimes import live_bytes
from onnxtrain.training.trainer import Trainer


def over_the_step(trainer: Trainer, batch: Mapping[str, Any]) -> list[tuple[str, int]] | None:
    """Node and bytes held after it, what is bound included; None if shapes do not tell."""
    runner = trainer.module.runner(training=True)
    model = runner.model.clone()
    put_sizes(model, {name: tuple(array.shape) for name, array in batch.items()})
    sizes = Sizes(model, runner.plan)
    if sizes.unknown:
        return None
    held = live_bytes(runner.plan.block, sizes.of)
    return [(step.node, sizes.bound + count) for step, count in held]


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
