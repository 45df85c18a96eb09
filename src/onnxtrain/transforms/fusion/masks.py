"""The masks of attention as FlashAttention takes them: none, what lies ahead, or a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.known import Known, Number, Triangle
from onnxtrain.transforms.fusion.scores import CLOSED, Added, Chosen, Mask
from onnxtrain.transforms.fusion.sizes import Dim, same_size
from onnxtrain.transforms.fusion.triangle import Masks
from onnxtrain.types import DataType


class Settled:
    """The masks of some scores, sorted.

    Args:
        masks: The masks.
        plane: How many rows and columns the scores have.
        dtype: Their type.
        known: What is known of values.
    """

    def __init__(
        self,
        masks: Sequence[Mask],
        plane: tuple[Dim | None, Dim | None],
        dtype: DataType,
        known: Masks,
    ) -> None:
        self._plane = plane
        self._dtype = dtype
        self._known = known
        masks = [mask for mask in masks if not self._is_open(mask)]
        self.is_causal = bool(masks) and all(self._is_causal(mask) for mask in masks)
        self._masks: Sequence[Mask] = () if self.is_causal else masks

    def _read(self, mask: Mask) -> Known | None:
        """What a mask adds: as read, or as a condition would."""
        if isinstance(mask, Added):
            return self._known.settled(mask.value)
        found = self._known.settled(mask.condition)
        if isinstance(found, Number):
            return Number(mask.adds(found.value))
        if isinstance(found, Triangle):
            return found.replaced(mask.adds(found.inside), mask.adds(found.outside))
        return None

    def _is_open(self, mask: Mask) -> bool:
        """Whether a mask closes nothing: softmax does not see what is added to all scores."""
        found = self._read(mask)
        return isinstance(found, Number) and found.value > CLOSED

    def _is_causal(self, mask: Mask) -> bool:
        """Whether a mask closes what lies ahead and nothing else, for all pairs."""
        found = self._read(mask)
        if not isinstance(found, Triangle) or (found.k, found.inside) != (0, 0.0):
            return False
        rows, columns = self._plane
        every = same_size(found.rows, rows) and same_size(found.columns, columns)
        return every and found.outside <= CLOSED

    def emit(self, op: Ops) -> ir.Value | None:
        """The mask as one tensor, None if there is none or it is causal."""
        if len(self._masks) == 1 and isinstance(self._masks[0], Chosen):
            (mask,) = self._masks
            assert isinstance(mask, Chosen)
            if mask.closed == -math.inf:
                return mask.condition if mask.opens else op.Not(mask.condition)
        total = None
        for term in (self._term(op, mask) for mask in self._masks):
            total = term if total is None else op.Add(total, op.cast(term, total))
        return total

    def _term(self, op: Ops, mask: Mask) -> ir.Value:
        """What a mask adds to scores."""
        if isinstance(mask, Added):
            return mask.value
        numbers = (op.const(mask.adds(condition), self._dtype) for condition in (1.0, 0.0))
        return op.Where(mask.condition, *numbers)
