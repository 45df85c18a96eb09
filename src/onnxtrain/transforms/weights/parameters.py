"""Which tensors of a model are weights: the choice behind ``trainable="auto"``, with reasons."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from onnxtrain.errors import ParameterError
from onnxtrain.graph.bodies import BodyTensor
from onnxtrain.graph.lift import lift
from onnxtrain.graph.names import nearest
from onnxtrain.transforms.weights.attribute_weights import lift_attributes
from onnxtrain.transforms.weights.exported import Exported
from onnxtrain.transforms.weights.frequencies import (
    counted_values,
    is_frequencies,
    is_grid,
    is_waves,
    rotations,
)
from onnxtrain.transforms.weights.masks import SWITCH, is_filled, is_zero, why_mask
from onnxtrain.transforms.weights.patterns import TRAINABLE, patterns_of
from onnxtrain.transforms.weights.places import (
    LINEAR,
    features,
    final_uses,
    in_group_norm,
    is_linear,
    under_root,
)
from onnxtrain.transforms.weights.prepared_inputs import preparing
from onnxtrain.transforms.weights.reached import leads_to
from onnxtrain.transforms.weights.untrainable import other_homes
from onnxtrain.transforms.weights.variables import is_converted, is_variable
from onnxtrain.transforms.weights.whole_numbers import Stored, stored_weights
from onnxtrain.types import FLOATS, DataType, dtype_name, op_name

STATISTICS = {
    ("BatchNormalization", 3): "running mean of BatchNormalization",
    ("BatchNormalization", 4): "running variance of BatchNormalization",
    ("BatchNormInternal", 3): "running mean of BatchNormInternal",
    ("BatchNormInternal", 4): "running variance of BatchNormInternal",
}
_SETTINGS = {
    ("Clip", 1): "lower bound of Clip",
    ("Clip", 2): "upper bound of Clip",
    ("Dropout", 1): "ratio of Dropout",
    ("GRU", 5): "initial state of GRU",
    ("GridSample", 1): "places of GridSample",
    ("GroupQueryAttention", 7): "cosines of positions",
    ("GroupQueryAttention", 8): "sines of positions",
    ("LongformerAttention", 3): "mask of LongformerAttention",
    ("LSTM", 5): "initial state of LSTM",
    ("LSTM", 6): "initial cell of LSTM",
    ("MaxRoiPool", 1): "regions of MaxRoiPool",
    ("MRotaryEmbedding", 2): "cosines or sines of positions",
    ("MRotaryEmbedding", 3): "cosines or sines of positions",
    ("OneHot", 2): "values of OneHot",
    ("Pad", 2): "fill value of Pad",
    ("Pow", 1): "exponent of Pow",
    ("QAttention", 3): "quantiser scale",
    ("QAttention", 4): "quantiser scale",
    **{("QEmbedLayerNormalization", index): "quantiser scale" for index in range(8, 13)},
    ("QuantizeLinear", 1): "quantiser scale",
    ("DequantizeLinear", 1): "quantiser scale",
    ("Range", 0): "bound of Range",
    ("Range", 1): "bound of Range",
    ("Range", 2): "step of Range",
    ("Resize", 1): "region of Resize",
    ("Resize", 2): "scales of Resize",
    ("RNN", 5): "initial state of RNN",
    ("RoiAlign", 1): "regions of RoiAlign",
    ("RotaryEmbedding", 1): "cosines or sines of positions",
    ("RotaryEmbedding", 2): "cosines or sines of positions",
    ("RotaryEmbedding", 3): "cosines or sines of positions",
    ("SparseAttention", 9): "cosines of positions",
    ("SparseAttention", 10): "sines of positions",
    ("Upsample", 1): "scales of Upsample",
}
_STATES = frozenset({("GRU", 5), ("LSTM", 5), ("LSTM", 6), ("RNN", 5)})
"""Settings that may be learned; if something was made of them first, only zeros are none."""
_DATA = frozenset(
    {
        *(("Conv", 0), ("ConvTranspose", 0), ("Gemm", 0), ("GRU", 0), ("LSTM", 0), ("RNN", 0)),
        *(("ScatterElements", 0), ("ScatterND", 0)),
    }
)
"""Places of data, where zeros are what something begins with: a state, or a sum by indices."""
_REPEATING = frozenset({"Loop", "Scan"})
"""Operators that only take data: states to begin with, and sequences."""
_AMONG_DATA = frozenset({("Add", 0), ("Add", 1), ("Sub", 0), ("Sub", 1), ("Conv", 0)})
"""Places where a grid of positions meets data."""
_ADDED = ("Gemm", 2)
"""Where a number without axes is no bias, which has one for every feature."""
_HOLDERS = LINEAR | {
    "BatchNormalization",
    "BatchNormInternal",
    "GRU",
    "GroupNormalization",
    "InstanceNormalization",
    "LSTM",
    "LayerNormalization",
    "PRelu",
    "RMSNormalization",
    "RNN",
    "SimplifiedLayerNormalization",
    "WithWeights",
}
"""Operators whose parameters may have a single element."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """Whether a tensor of the model is trained, and why (not).

    Attributes:
        name: Name of the tensor.
        trained: Whether it is trained.
        reason: Why, or why not.
        elements: How many numbers it has.
        statistic: Whether it is a running statistic, which training moves in its own way.
        possible: Whether it could be trained if it were asked for by name.
        made_of: Parameters of the torch module that an exporter computed it from, and other names
            that it has there.
        lost: Whether it is the weight of a layer on which the loss does not depend.
    """

    name: str
    trained: bool
    reason: str
    elements: int
    statistic: bool = False
    possible: bool = True
    made_of: tuple[str, ...] = ()
    lost: bool = False

    def matches(self, pattern: str) -> bool:
        """Whether its name, or that of a parameter that it was made of, matches a glob pattern."""
        return any(fnmatch.fnmatchcase(name, pattern) for name in (self.name, *self.made_of))


def lift_weights(model: ir.Model, named: Collection[str] = ()) -> ir.Model:
    """Take weights out of attributes and bodies (If, Loop, Scan, functions), in place.

    Running statistics and what is no weight by its use stay in the bodies, unless it is named.
    """
    lift_attributes(model)
    lift(model, lambda one: one.name in named or _is_body_weight(one))
    return model


def _is_body_weight(one: BodyTensor) -> bool:
    if one.tensor.size == 0:
        return False
    uses = one.value.uses()
    if any((node.op_type, index) in STATISTICS for node, index in uses):
        return False
    return any(_not_a_weight(one.value, one.tensor, node, index) is None for node, index in uses)


UNREACHED = "no differentiable path to the loss"


def decide(
    model: ir.Model,
    wanted: str | Sequence[str] = "auto",
    outputs: Sequence[str] | None = None,
    known: Collection[str] | None = None,
) -> list[Decision]:
    """A decision for every floating point initializer of a prepared model.

    Args:
        model: The model.
        wanted: ``auto``, or names and glob patterns of the tensors to train.
        outputs: Outputs that the loss uses; all of them by default.
        known: Tensors that can be written back into the original file; all by default.

    Raises:
        ParameterError: if a name or pattern matches nothing, or nothing is left to train.
    """
    reached = leads_to(model.graph, outputs)
    turning = rotations(model.graph.initializers.values())
    counted = counted_values(model.graph)
    told = Exported.of(model)
    stored = stored_weights(model.graph)
    for name, form in stored.items():
        if any(node.outputs[0] in reached for node in form.nodes):
            reached.add(model.graph.initializers[name])
    decisions = [
        _decision(
            value,
            value in reached,
            known is None or name in known,
            value in turning,
            counted,
            stored.get(name),
            told,
        )
        for name, value in model.graph.initializers.items()
        if value.const_value is not None and (value.const_value.dtype in FLOATS or name in stored)
    ]
    values = model.graph.initializers
    decisions = [dataclasses.replace(d, made_of=told.made_of(values[d.name])) for d in decisions]
    prepared = {str(v.name) for v in preparing(model.graph) if not told.is_parameter(v)}
    decisions = _without(decisions, prepared, "prepares an input")
    if wanted != "auto":
        patterns = patterns_of(wanted, TRAINABLE)
        decisions = _picked(decisions, patterns, model.graph)
    if not any(d.trained for d in decisions):
        homes = "".join(f"\n  {line}" for line in other_homes(model.graph))
        why = _why_not(decisions) + homes
        raise ParameterError(f"the model has no weight that could be trained{why}")
    return decisions


def _without(decisions: Sequence[Decision], names: Collection[str], why: str) -> list[Decision]:
    """The decisions with some tensors left out, unless nothing else is trained."""
    if not any(d.trained and d.name not in names for d in decisions):
        return list(decisions)
    return [
        dataclasses.replace(d, trained=False, reason=why) if d.trained and d.name in names else d
        for d in decisions
    ]


def _why_not(decisions: Sequence[Decision]) -> str:
    return "".join(f"\n  '{d.name}': {d.reason}" for d in decisions[:8])


def _decision(
    value: ir.Value,
    reached: bool,
    writable: bool,
    turning: bool,
    counted: Collection[ir.Value],
    form: Stored | None,
    told: Exported,
) -> Decision:
    tensor = value.const_value
    assert tensor is not None
    name, elements = str(value.name), int(tensor.size)
    for node, index in value.uses():
        if reason := STATISTICS.get((node.op_type, index)):
            return Decision(name, False, reason, elements, statistic=True, possible=False)
    if not writable:
        reason = "is no tensor of its own in the file"
        return Decision(name, False, reason, elements, possible=False)
    if reached and not elements:
        return Decision(name, False, "has no elements", elements, possible=False)
    made = Decision(name, False, UNREACHED, elements, possible=False)
    values = [value] if form is None else [node.outputs[0] for node in form.nodes]
    if not reached and (not elements or not any(map(_is_of_layer, values))):
        return made
    weighed = _weighed(value, tensor, turning, counted, form, told)
    return weighed if reached else dataclasses.replace(made, lost=weighed.trained)


def _is_of_layer(value: ir.Value) -> bool:
    """Whether a layer computes with a tensor, or looks rows up in it."""
    uses = list(final_uses(value))
    table = len(value.shape or ()) > 1 and any((n.op_type, i) == ("Gather", 0) for n, i in uses)
    return table or any(node.op_type in _HOLDERS for node, _ in uses)


def _weighed(
    value: ir.Value,
    tensor: ir.TensorProtocol,
    turning: bool,
    counted: Collection[ir.Value],
    form: Stored | None,
    told: Exported,
) -> Decision:
    """Whether a tensor is a weight by its use and by what it holds."""
    name, elements = str(value.name), int(tensor.size)
    weight = "weight"
    reasons = [_not_a_weight(value, tensor, node, index) for node, index in final_uses(value)]
    if form is not None:
        weight = f"weight stored as {dtype_name(tensor.dtype)}"
        reasons = _not_stored_weights(tensor, form)
    elif told.is_parameter(value):
        reasons = [why_mask(tensor, node) for node, _ in final_uses(value)]
    if SWITCH in reasons:
        return Decision(name, False, SWITCH, elements)
    if reasons and all(reasons):
        return Decision(name, False, str(reasons[0]), elements)
    if is_frequencies(value, counted):
        return Decision(name, False, "frequencies of a position encoding", elements)
    if turning or is_waves(value):
        return Decision(name, False, "cosines or sines of positions", elements)
    if form is None and (fixed := told.fixed.get(name)):
        return Decision(name, False, fixed, elements)
    return Decision(name, True, weight, elements)


def _not_stored_weights(tensor: ir.TensorProtocol, form: Stored) -> list[str | None]:
    """For each use of what whole numbers stand for: why it is a constant there, or None."""
    real = ir.LazyTensor(
        lambda: ir.Tensor(form.floats(np.asarray(tensor.numpy()))),
        DataType.from_numpy(form.scale.dtype),
        ir.Shape(tensor.shape.numpy()),
        name=tensor.name,
    )
    values = [node.outputs[0] for node in form.nodes]
    return [_not_a_weight(v, real, node, index) for v in values for node, index in final_uses(v)]


def _not_a_weight(
    value: ir.Value, tensor: ir.TensorProtocol, node: ir.Node, index: int
) -> str | None:
    """Why a tensor is a constant in this use, or None if it may be a weight."""
    place = (node.op_type, index)
    if place in STATISTICS:
        return STATISTICS[place]
    made = place in _STATES and node not in value.consumers()
    if place in _SETTINGS and (not made or is_zero(tensor)):
        return _SETTINGS[place]
    if (place in _DATA or node.op_type in _REPEATING) and is_zero(tensor):
        return f"zeros in the place of data of {op_name(node.domain, node.op_type)}"
    if place in _AMONG_DATA and is_grid(tensor):
        return "positions on a grid"
    if in_group_norm(node) and is_filled(tensor, index == 1):
        return "leaves groups of channels as they are"
    spread = len(tensor.shape) == 0 and (place == _ADDED or node not in value.consumers())
    if node.op_type in _HOLDERS and not spread:
        return None
    if tensor.size == 1 and not (_is_bias(value, tensor, node) or is_variable(value, node)):
        return f"single number in {op_name(node.domain, node.op_type)}"
    if under_root(node):
        return "variance: its root is taken"
    return why_mask(tensor, node)


def _is_bias(value: ir.Value, tensor: ir.TensorProtocol, node: ir.Node) -> bool:
    """A number added to the result of a matrix product or convolution.

    TensorFlow's converter spreads what else is added, as in a hard sigmoid, over all axes.
    """
    if node.op_type != "Add" or len(tensor.shape) == 0:
        return False
    others = [v for v in node.inputs if v is not None and v is not value and is_linear(v)]
    spread = len(tensor.shape) > 1 and is_converted(value)
    return any(not spread or features(v) in (None, 1) for v in others)


def _picked(
    decisions: Sequence[Decision], patterns: Sequence[str], graph: ir.Graph
) -> list[Decision]:
    """Decisions for what the user named.

    A name is trained, or refused with the reason; a pattern picks the weights among its matches.
    """
    if not patterns:
        raise ParameterError("nothing is to be trained: the list of trainable parameters is empty")
    by_name = {d.name: d for d in decisions}
    chosen: set[str] = set()
    for pattern in patterns:
        made = [d for d in decisions if pattern in d.made_of]
        if pattern in by_name:
            chosen.add(_possible(by_name[pattern]).name)
        elif made:
            chosen |= {d.name for d in made if d.possible} or {_possible(made[0]).name}
        else:
            chosen |= {d.name for d in _matches(pattern, decisions, graph)}
    return [
        dataclasses.replace(d, trained=True, reason="asked for")
        if d.name in chosen
        else dataclasses.replace(
            d, trained=False, reason="not asked for" if d.trained else d.reason, lost=False
        )
        for d in decisions
    ]


def _possible(decision: Decision) -> Decision:
    if not decision.possible:
        raise ParameterError(f"cannot train '{decision.name}': {decision.reason}")
    return decision


def _matches(pattern: str, decisions: Sequence[Decision], graph: ir.Graph) -> list[Decision]:
    """The weights that a glob pattern matches, at least one."""
    found = [d for d in decisions if d.matches(pattern)]
    if weights := [d for d in found if d.trained]:
        return weights
    if found:
        cure = "\n  give the full name of a constant to train it"
        raise ParameterError(
            f"no weight matches '{pattern}', only constants do{_why_not(found)}"
            f"{cure if any(d.possible for d in found) else ''}"
        )
    if pattern in graph.initializers and graph.initializers[pattern].dtype is not None:
        dtype = dtype_name(graph.initializers[pattern].dtype)  # type: ignore[arg-type]
        raise ParameterError(f"cannot train '{pattern}': it is {dtype}, not floating point")
    names = [d.name for d in sorted(decisions, key=lambda d: not d.trained)]
    raise ParameterError(f"no parameter matches '{pattern}'\n  have  {nearest([pattern], names)}")
