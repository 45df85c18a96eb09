"""What normalizations have in common, however they are written."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.pattern import Refusal
from onnxtrain.types import DataType


@dataclasses.dataclass
class Normalized:
    """What was found around a Sqrt.

    Attributes:
        data: What is normalized.
        centred: Whether its mean is subtracted.
        axes: How many of the last axes are normalized.
        epsilon: What is added to the mean of squares.
        nodes: The nodes, in order of use; the last one gives the result.
        scale: What the result is multiplied by.
        bias: What is added then.
    """

    data: ir.Value
    centred: bool
    axes: int
    epsilon: float
    nodes: list[ir.Node]
    scale: ir.Value | None = None
    bias: ir.Value | None = None

    @property
    def result(self) -> ir.Value:
        """What the nodes give."""
        return self.nodes[-1].outputs[0]

    @property
    def stash_type(self) -> int:
        """The type of the statistics that a gradient needs."""
        double = self.data.dtype == DataType.DOUBLE
        return int(DataType.DOUBLE if double else DataType.FLOAT)

    def fits(self, value: ir.Value) -> bool:
        """Whether a value varies along the normalized axes only, and has their sizes."""
        if self.data.shape is None or value.shape is None:
            return False
        rank, more = len(self.data.shape), len(value.shape) - self.axes
        wanted = list(self.data.shape)[rank - self.axes :]
        if not 0 <= more <= rank - self.axes or list(value.shape)[more:] != wanted:
            return False
        return not more or (self._sizes is not None and set(list(value.shape)[:more]) == {1})

    def vector(self, op: Ops, value: ir.Value) -> ir.Value:
        """A value that fits, without axes of one element in front of the normalized ones."""
        if value.shape is None or len(value.shape) == self.axes or self._sizes is None:
            return value
        return op.Reshape(value, op.ints(self._sizes))

    def scale_or_ones(self, op: Ops) -> ir.Value:
        """The scale; ones in the shape of what is normalized if there is none."""
        if self.scale is not None:
            return self.vector(op, self.scale)
        assert self._sizes is not None and self.data.dtype is not None
        return op.const(np.ones(self._sizes), self.data.dtype)

    def shift(self, op: Ops) -> ir.Value | None:
        """The bias, if there is one."""
        return None if self.bias is None else self.vector(op, self.bias)

    def need_sizes(self) -> None:
        """Refuse to go without a scale if ones cannot be made."""
        if self._sizes is None:
            raise Refusal("there is no scale, and the sizes of the normalized axes are not known")

    @property
    def _sizes(self) -> list[int] | None:
        """How large the normalized axes are, None if that is not known."""
        if self.data.shape is None:
            return None
        last = list(self.data.shape)[-self.axes :]
        sizes = [size for size in last if isinstance(size, int)]
        return sizes if len(sizes) == len(last) else None
