"""Group and instance normalization as one operator that keeps the statistics for its gradient.

Where there is no operator for groups, they take the place of channels between two Reshapes, in an
InstanceNormalization whose own scale does nothing; channels are scaled and shifted behind it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.bindings import same_dim, same_shape
from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.pattern import Match, Pattern, Refusal
from onnxtrain.transforms.fusion.reading import made_by, only_reader, opset_of, pairs
from onnxtrain.types import OWN, DataType

_BY_CHANNEL = 21
"""From this opset on GroupNormalization has a scale for each channel, not for each group."""


@dataclasses.dataclass(frozen=True)
class _Groups:
    """What is normalized, and what it is scaled and shifted by; None for not at all."""

    x: ir.Value
    channels: int
    groups: int
    epsilon: float
    scale: ir.Value | None = None
    shift: ir.Value | None = None

    def emit(self, op: Ops) -> ir.Value:
        """The operator; what scales or shifts channels becomes a vector."""
        vectors = [
            self._vector(op, value, one) for value, one in ((self.scale, 1), (self.shift, 0))
        ]
        return op.GroupNormalized(
            self.x, *vectors, num_groups=self.groups, epsilon=self.epsilon, _domain=OWN
        )

    def _vector(self, op: Ops, value: ir.Value | None, filled: int) -> ir.Value:
        if value is None:
            assert self.x.dtype is not None
            return op.const(np.full(self.channels, filled, self.x.dtype.numpy()))
        if value.shape is not None and len(value.shape) == 1:
            return value
        return op.Reshape(value, op.ints([self.channels]))


def match(node: ir.Node) -> Match:
    """A normalization, and what belongs to it."""
    x, scale, shift = node.inputs
    assert x is not None
    epsilon = node.attributes.get_float("epsilon", float(np.float32(1e-5)))
    if node.op_type == "GroupNormalization":
        _refuse_form(node)
        groups = node.attributes.get_int("num_groups", 1)
        found = _Groups(x, _channels(x), groups, epsilon, scale, shift)
        return Match([node], found.emit)
    grouped = _in_groups(node, x, epsilon)
    if grouped is not None:
        return grouped
    channels = _channels(x)
    return Match([node], _Groups(x, channels, channels, epsilon, scale, shift).emit)


def _in_groups(node: ir.Node, x: ir.Value, epsilon: float) -> Match | None:
    """Groups of channels that an InstanceNormalization takes for channels, if it does."""
    before, after = made_by(x, "Reshape"), only_reader(node.outputs[0], "Reshape")
    data = None if before is None else before.inputs[0]
    if before is None or after is None or data is None:
        return None
    if not _is_full(node.inputs[1], 1) or not _is_full(node.inputs[2], 0):
        return None
    if data.shape is None or len(data.shape) < 3 or not isinstance(data.shape[1], int):
        return None
    channels, groups = data.shape[1], _channels(x)
    if not _is_regrouped(data, x, after.outputs[0], channels, groups):
        return None
    nodes, scale, shift = _behind(after, channels)
    shared = [] if only_reader(x, "InstanceNormalization") is None else [before]
    found = _Groups(data, channels, groups, epsilon, scale, shift)
    return Match([*shared, node, *nodes], found.emit)


def _refuse_form(node: ir.Node) -> None:
    if opset_of(node) < _BY_CHANNEL:
        raise Refusal("there is a scale for each group")
    if node.attributes.get_int("stash_type", DataType.FLOAT) != DataType.FLOAT:
        raise Refusal("statistics are to be computed in another type")


def _channels(x: ir.Value) -> int:
    count = None if x.shape is None or len(x.shape) < 3 else x.shape[1]
    if not isinstance(count, int) or count < 1:
        raise Refusal("the number of channels or groups is not known")
    return count


def _is_regrouped(
    data: ir.Value, grouped: ir.Value, back: ir.Value, channels: int, groups: int
) -> bool:
    """Whether Reshapes make groups of whole channels of a sample for certain, and undo that."""
    assert data.shape is not None and grouped.shape is not None
    samples = same_dim(data.shape[0], grouped.shape[0])
    whole = len(grouped.shape) == 3 and channels > 0 and channels % groups == 0
    return samples and whole and same_shape(data, back)


def _is_full(value: ir.Value | None, number: int) -> bool:
    tensor = None if value is None else value.const_value
    return tensor is not None and bool((tensor.numpy() == number).all())


def _behind(
    after: ir.Node, channels: int
) -> tuple[list[ir.Node], ir.Value | None, ir.Value | None]:
    """The nodes from the last Reshape on, and the scale and the shift of channels."""
    nodes, found = [after], dict[str, ir.Value]()
    for op_type in ("Mul", "Add"):
        value = nodes[-1].outputs[0]
        node = only_reader(value, op_type)
        others = [] if node is None else [b for a, b in pairs(node) if a is value and b is not a]
        if node is None or not others or not _is_by_channel(others[0], value, channels):
            continue
        nodes.append(node)
        found[op_type] = others[0]
    return nodes, found.get("Mul"), found.get("Add")


def _is_by_channel(vector: ir.Value, value: ir.Value, channels: int) -> bool:
    """Whether a value has one number for each channel of another, and its type."""
    if vector.shape is None or value.shape is None or vector.dtype != value.dtype:
        return False
    wanted: Sequence[int] = [1, channels, *[1] * (len(value.shape) - 2)]
    dims = list(vector.shape)
    return len(dims) >= len(wanted) - 1 and dims == list(wanted)[len(wanted) - len(dims) :]


PATTERN = Pattern(
    "GroupNormalized", frozenset({"GroupNormalization", "InstanceNormalization"}), match
)
