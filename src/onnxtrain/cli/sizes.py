"""Bytes of the locals of a plan, as far as the model's shapes tell."""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxtrain.runtime.plan import Plan, Step


class Sizes:
    """Sizes of what the steps of a plan make.

    Attributes:
        unknown: Locals whose size the shapes do not tell.
        bound: Bytes of parameters, state and constants, which are there all the time.
    """

    def __init__(self, model: ir.Model, plan: Plan) -> None:
        self._nodes = {node.name: node for node in model.graph}
        self._bytes: dict[str, int | None] = {}
        values = {v.name: v for v in (*model.graph.inputs, *model.graph.initializers.values())}
        for argument in plan.inputs:
            self._bytes[argument.local] = bytes_of(values.get(argument.name))
        for name, local in plan.state.items():
            self._bytes[local] = bytes_of(values.get(name))
        self.bound = sum(self._bytes[local] or 0 for local in plan.state.values())
        for local, (value, _) in plan.constants.items():
            self._bytes[local] = getattr(value, "nbytes", 0)
            self.bound += self._bytes[local] or 0
        for step in plan.block.steps:
            self._measure(step)
        made = [name for step in plan.block.steps for name in step.written]
        self.unknown = [name for name in made if self._bytes.get(name) is None]

    def _measure(self, step: Step) -> None:
        """Sizes of a step's outputs; a step that is no node copies its input."""
        node = self._nodes.get(step.node)
        for index, local in enumerate(step.outputs):
            if local is None:
                continue
            if node is None:
                self._bytes[local] = self._bytes.get(step.reads[0] or "")
            else:
                self._bytes[local] = bytes_of(node.outputs[index])

    def of(self, local: str) -> int:
        """Bytes of a local."""
        return self._bytes.get(local) or 0


def bytes_of(value: ir.Value | None) -> int | None:
    """Bytes of a tensor, or None if its type or shape is not known."""
    if value is None or value.dtype is None or value.shape is None:
        return None
    if isinstance(value.type, (ir.SequenceType, ir.OptionalType)):
        return None
    dims = [dim for dim in value.shape if isinstance(dim, int)]
    if len(dims) != len(value.shape):
        return None
    return math.ceil(math.prod(dims) * value.dtype.itemsize)
