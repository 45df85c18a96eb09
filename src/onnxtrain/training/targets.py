"""Targets of one sample: compared with the predictions for many, they would be broadcast."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import onnx_ir as ir

from onnxtrain.errors import FeedError
from onnxtrain.graph.bindings import same_shape
from onnxtrain.runtime.plan import Argument
from onnxtrain.types import ONNX

_COMPARES = frozenset({"Mul", "Sub"})
"""What losses of elements compare predictions and targets with."""


@dataclasses.dataclass(frozen=True)
class _Size:
    """A free size that a target shares with another input, as positions of inputs and axes."""

    name: str
    target: int
    axis: int
    other: int
    other_axis: int


def target_names(model: ir.Model) -> frozenset[str]:
    """Inputs that a model with a loss compares, element by element, with what it computed.

    It subtracts them or their logarithms, and declares that both have the same shape.
    """
    return frozenset(str(value.name) for value in model.graph.inputs if _is_target(value))


class Targets:
    """Checks that targets have as many samples as the other inputs of a step.

    Args:
        arguments: What the caller passes, in order.
        targets: Names of those that are targets.
    """

    def __init__(self, arguments: Sequence[Argument], targets: Collection[str]) -> None:
        self._arguments = arguments
        self._sizes = [
            size
            for index, argument in enumerate(arguments)
            if argument.name in targets
            for size in _shared(arguments, index)
        ]

    def check(self, given: Sequence[Any]) -> None:
        """Check the inputs of a step.

        Raises:
            FeedError: if a target has one sample, and another input has more.
        """
        for size in self._sizes:
            one, many = given[size.target], given[size.other]
            if one.shape[size.axis] == 1 and many.shape[size.other_axis] > 1:
                names = [self._arguments[i].name for i in (size.target, size.other)]
                raise FeedError(
                    f"input '{names[0]}' has shape {list(one.shape)}, with 1 as its "
                    f"'{size.name}', but '{names[1]}' has shape {list(many.shape)}\n"
                    "  the loss would compare all predictions with one target: give as many targets"
                )


def _is_target(value: ir.Value) -> bool:
    """Whether an input, or its logarithm, is subtracted, and meets something of the same shape.

    That has to be computed, and not from the input itself.
    """
    if not isinstance(value.type, ir.TensorType):
        return False
    logarithms = {value, *_logarithms(value)}
    readers = {one: [n for n in one.consumers() if n.domain == ONNX] for one in logarithms}
    subtracted = any(node.op_type == "Sub" for nodes in readers.values() for node in nodes)
    return subtracted and any(
        other is not None
        and other not in logarithms
        and other.producer() is not None
        and same_shape(value, other)
        for nodes in readers.values()
        for node in nodes
        if node.op_type in _COMPARES
        for other in node.inputs
    )


def _logarithms(value: ir.Value) -> Iterator[ir.Value]:
    """Logarithms of a value, with another number where it has none."""
    for node in value.consumers():
        if node.domain == ONNX and node.op_type in ("Log", "Where"):
            result = node.outputs[0]
            yield from [result] if node.op_type == "Log" else _logarithms(result)


def _shared(arguments: Sequence[Argument], target: int) -> Iterator[_Size]:
    """Free sizes of a target that other inputs have too."""
    for axis, dim in enumerate(arguments[target].shape or ()):
        for index, other in enumerate(arguments):
            if isinstance(dim, int) or index == target or not isinstance(other.type, ir.TensorType):
                continue
            for place, found in enumerate(other.shape or ()):
                if (
                    not isinstance(found, int)
                    and dim.value is not None
                    and dim.value == found.value
                ):
                    yield _Size(str(dim.value), target, axis, index, place)
