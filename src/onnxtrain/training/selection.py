"""Which weights are trained: patterns to take and to leave out, the last layers, or the biases."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import onnx_ir as ir

from onnxtrain.errors import ParameterError
from onnxtrain.graph.names import nearest
from onnxtrain.transforms.weights.computed import warn_of_computed
from onnxtrain.transforms.weights.parameters import Decision, decide
from onnxtrain.transforms.weights.patterns import TRAINABLE, patterns_of
from onnxtrain.transforms.weights.unreached import leading_nowhere

_BIASES = {
    "BatchNormalization": 2,
    "Conv": 2,
    "ConvTranspose": 2,
    "FusedConv": 2,
    "GRU": 3,
    "Gemm": 2,
    "GroupNormalization": 2,
    "InstanceNormalization": 2,
    "LSTM": 3,
    "LayerNormalization": 2,
    "RNN": 3,
}
"""Where an operator takes its bias."""
_PASSING = frozenset(
    {"Cast", "DequantizeLinear", "Identity", "QuantizeLinear", "Reshape", "Squeeze", "Transpose"}
)
"""Operators that hand a weight on to the layer that uses it."""


@dataclasses.dataclass(frozen=True)
class Selection:
    """A choice of weights; each rule that is given leaves fewer.

    Attributes:
        include: Names and glob patterns to train; empty for all weights.
        exclude: Names and glob patterns that stay as they are.
        last: How many layers are trained, counted from the end: what a layer's weight of two or
            more dimensions belongs to, and all that follows it.
        biases: Whether only biases are trained.
    """

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    last: int | None = None
    biases: bool = False


def asked_for(trainable: str | Sequence[str] | Selection) -> list[str]:
    """The names and patterns of what is to be trained.

    Raises:
        ParameterError: if they are something else.
    """
    given = trainable.include if isinstance(trainable, Selection) else trainable
    return patterns_of(given, TRAINABLE)


def decided(
    model: ir.Model,
    trainable: str | Sequence[str] | Selection,
    outputs: Sequence[str],
    known: Collection[str],
    named: Sequence[str] | None = None,
) -> tuple[list[Decision], list[str]]:
    """Which tensors of a prepared model are trained, and those that were asked for by name.

    Args:
        model: The model.
        trainable: ``auto``, names and patterns, or a selection.
        outputs: Outputs that the loss uses.
        known: Tensors that can be written back into the original file.
        named: The outputs as the user named them; None if nobody did.

    Raises:
        ParameterError: if a name or pattern matches nothing, or nothing is left to train.
    """
    chosen = trainable if isinstance(trainable, Selection) else Selection()
    wanted = trainable
    if isinstance(wanted, Selection):
        wanted = list(wanted.include) or "auto"
    decisions = narrowed(decide(model, wanted, outputs, known=known), model, chosen)
    if named is not None:
        decisions = leading_nowhere(model, decisions)
    warn_of_computed(model, decisions, wanted == "auto", level=5)
    return decisions, [wanted] if isinstance(wanted, str) else list(wanted)


def statistics_in(decisions: Sequence[Decision], writable: Collection[str]) -> list[str]:
    """Statistics of batches, which move in training, that can be written into the file."""
    return [d.name for d in decisions if d.statistic and d.name in writable]


def narrowed(decisions: list[Decision], model: ir.Model, chosen: Selection) -> list[Decision]:
    """The decisions after all rules but ``include``.

    Raises:
        ParameterError: if a pattern matches nothing, or nothing is left to train.
    """
    if chosen.last is not None and chosen.last < 1:
        raise ParameterError(f"at least the last layer is trained, not the last {chosen.last}")
    if chosen.last is not None:
        decisions = _last(decisions, model.graph, chosen.last)
    if chosen.exclude:
        decisions = _without(decisions, chosen.exclude)
    if chosen.biases:
        values = model.graph.initializers
        kept = {d.name for d in decisions if d.trained and _is_bias(values[d.name])}
        decisions = _kept(decisions, kept, "no bias")
    if not any(d.trained for d in decisions):
        shown = "".join(f"\n  '{d.name}': {d.reason}" for d in decisions[:8])
        raise ParameterError(f"the choice of parameters leaves nothing to train{shown}")
    return decisions


def _kept(decisions: list[Decision], names: set[str], reason: str) -> list[Decision]:
    return [
        dataclasses.replace(d, trained=False, reason=reason)
        if d.trained and d.name not in names
        else d
        for d in decisions
    ]


def _without(decisions: list[Decision], patterns: Sequence[str]) -> list[Decision]:
    names = [d.name for d in decisions]
    left = set(names)
    for pattern in patterns:
        found = {d.name for d in decisions if d.matches(pattern)}
        if not found:
            raise ParameterError(
                f"no parameter matches '{pattern}', which is to be frozen\n"
                f"  have  {nearest([pattern], names)}"
            )
        left -= found
    return _kept(decisions, left, "frozen")


def _last(decisions: list[Decision], graph: ir.Graph, count: int) -> list[Decision]:
    """Train what the last layers and the nodes behind them use."""
    place = {node: index for index, node in enumerate(graph)}
    used = {
        d.name: max(_places(graph.initializers[d.name], place), default=-1)
        for d in decisions
        if d.trained
    }
    wide = {used[name] for name in used if len(graph.initializers[name].shape or ()) > 1}
    if count > len(wide):
        raise ParameterError(
            f"the last {count} layers cannot be trained: {len(wide)} have a weight of two or "
            "more dimensions that is trained"
        )
    first = sorted(wide)[-count]
    return _kept(
        decisions, {name for name in used if used[name] >= first}, "before the last layers"
    )


def _places(value: ir.Value, place: dict[ir.Node, int]) -> list[int]:
    """Where the layers that use a value stand."""
    found: list[int] = []
    for node, _ in value.uses():
        if node.op_type in _PASSING and node in place:
            found += [i for output in node.outputs for i in _places(output, place)]
        elif node in place:
            found.append(place[node])
    return found


def _is_bias(value: ir.Value) -> bool:
    """A vector that is added: by the operator that it belongs to, or by an Add of its own."""
    return any(
        _BIASES.get(node.op_type) == index
        or (node.op_type == "Add" and len(value.shape or ()) <= 1)
        for node, index in value.uses()
    )
