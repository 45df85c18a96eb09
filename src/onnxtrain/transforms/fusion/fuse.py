"""The patterns in the order in which they are looked for."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping

import onnx_ir as ir

from onnxtrain.graph.edit import remove_dead
from onnxtrain.transforms.fusion import (
    attention,
    batched,
    cross_entropy,
    gated,
    gelu,
    group_norm,
    halves,
    layer_norm,
    linear,
    onnx_attention,
    rms_norm,
    rotary,
    rotated,
    selected,
    swish,
)
from onnxtrain.transforms.fusion.factors import move_factors
from onnxtrain.transforms.fusion.folding import fold, share
from onnxtrain.transforms.fusion.headed import divide_first
from onnxtrain.transforms.fusion.packed import unpack
from onnxtrain.transforms.fusion.pattern import Pattern, apply
from onnxtrain.transforms.fusion.report import Report
from onnxtrain.transforms.fusion.sliced import split_slices
from onnxtrain.transforms.fusion.split import split
from onnxtrain.transforms.fusion.triangle import Masks
from onnxtrain.transforms.fusion.zero_bias import drop_zero_biases
from onnxtrain.types import ONNX

PATTERNS: tuple[Pattern, ...] = (
    gelu.PATTERN,
    layer_norm.PATTERN,
    group_norm.PATTERN,
    rms_norm.PATTERN,
    swish.PATTERN,
    gated.PATTERN,
    halves.PATTERN,
    rotary.PATTERN,
    rotated.PATTERN,
    linear.PATTERN,
    cross_entropy.PATTERN,
)


def fuse(
    model: ir.Model,
    *,
    trained: Collection[str] = (),
    constants: Mapping[str, ir.TensorProtocol] | None = None,
) -> Report:
    """Replace nodes that together are one operator by that operator, in place.

    Inputs, outputs and weights keep their names. Nodes in the bodies of others stay as they are.

    Args:
        model: A prepared model, in training form if it is to be trained.
        trained: Initializers that are trained, and so are no constants to compute with.
        constants: Values of inputs that never change.

    Returns:
        What was fused, and what nearly was with the reason why not.
    """
    report, graph, masks = Report(), model.graph, Masks()
    with _constant(graph, trained, constants or {}):
        fold(graph)
        drop_zero_biases(graph, report)
        split(graph, report)
        move_factors(graph)
        for pattern in (selected.PATTERN, batched.PATTERN):
            apply(graph, pattern, report)
            remove_dead(graph, keep=lambda node: node.domain != ONNX)
        for pattern in (attention.matching(masks), onnx_attention.matching(masks), *PATTERNS):
            apply(graph, pattern, report)
        unpack(graph, report)
        remove_dead(graph, keep=lambda node: node.domain != ONNX)
        divide_first(graph, report)
        share(graph)
        split_slices(graph, report)
    remove_dead(graph, keep=lambda node: node.domain != ONNX)
    return report


@dataclasses.dataclass
class Fusion:
    """Fusion as a step on the way to a training graph.

    Attributes:
        constants: Values of inputs that never change.
        report: What was done, once it is done.
    """

    constants: Mapping[str, ir.TensorProtocol] = dataclasses.field(default_factory=dict)
    report: Report = dataclasses.field(default_factory=Report)

    def __call__(self, model: ir.Model) -> None:
        """Fuse a prepared model whose parameters are inputs, in place."""
        self.report = fuse(model, constants=self.constants)


def split_sequences(model: ir.Model) -> None:
    """Only replace what splits into sequences of which parts are taken out one by one, in place.

    Gradients of sequences take operators of our own, which other runtimes do not have.

    Args:
        model: A prepared model.
    """
    with _constant(model.graph, (), {}):
        split(model.graph, Report())


@contextlib.contextmanager
def _constant(
    graph: ir.Graph, trained: Collection[str], constants: Mapping[str, ir.TensorProtocol]
) -> Iterator[None]:
    """With: values have a constant if, and only if, it stays what it is."""
    values = dict.fromkeys((*graph.inputs, *graph.initializers.values()))
    before = {value: value.const_value for value in values}
    for value in values:
        if value.name in constants:
            value.const_value = constants[str(value.name)]
        elif value.name in trained or value.is_graph_input():
            value.const_value = None
    try:
        yield
    finally:
        for value, tensor in before.items():
            value.const_value = tensor
