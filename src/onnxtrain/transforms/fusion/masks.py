"""The masks of attention as FlashAttention takes them: none, what lies ahead, or a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.graph.inference.products import Dim
from onnxtrain.transforms.fusion.known import Known, Number, Triangle
from onnxtrain.transforms.fusion.pattern import Refusal
from onnxtrain.transforms.fusion.reading import rank
from onnxtrain.transforms.fusion.regrouped import mask_apart
from onnxtrain.transforms.fusion.scores import CLOSED, Added, Chosen, Mask
from onnxtrain.transforms.fusion.sizes import same_size
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
        self._silencing = self._that_silence()

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

    def _that_silence(self) -> Sequence[Chosen]:
        """Conditions that may close all pairs of a query by a number, which then are all alike.

        Raises:
            Refusal: if one of them has a rank that is not known.
        """
        chosen = [mask for mask in self._masks if isinstance(mask, Chosen)]
        if all(mask.closed == -math.inf for mask in chosen):
            return ()
        if len(chosen) == 1 and self._opens_first(chosen[0]):
            return ()
        if any(rank(mask.condition) is None for mask in chosen):
            raise Refusal("the rank of a condition that closes scores is not known")
        return chosen

    def _opens_first(self, mask: Mask) -> bool:
        """Whether every query sees the first key at least."""
        found = self._read(mask)
        return isinstance(found, Triangle) and found.k >= 0 and found.inside > CLOSED

    def heard(self, op: Ops, q: ir.Value) -> ir.Value:
        """The queries, zeros in place of those that conditions close all pairs of.

        These are weighted alike and have no gradient: what Where took the place of does not count.
        Beside what is added instead, their scores would.
        """
        opened: ir.Value | None = None
        for mask in self._silencing:
            condition = _apart(op, mask.condition, mask, q)
            one = condition if mask.opens else op.Not(condition)
            opened = one if opened is None else op.And(opened, one)
        if opened is None:
            return q
        if rank(opened):
            found = op.reduce("ReduceMax", op.cast(opened, DataType.INT32), [-1])
            opened = op.cast(found, DataType.BOOL)
        return op.where(opened, q, op.scalar(0, q))

    def emit(self, op: Ops, q: ir.Value) -> ir.Value | None:
        """The mask of these queries as one tensor, None if there is none or it is causal."""
        if len(self._masks) == 1 and isinstance(self._masks[0], Chosen):
            (mask,) = self._masks
            assert isinstance(mask, Chosen)
            if mask.closed == -math.inf:
                condition = _apart(op, mask.condition, mask, q)
                return condition if mask.opens else op.Not(condition)
        total: ir.Value | None = None
        for mask in self._masks:
            if isinstance(mask, Chosen):
                total = self._closed(op, mask, total, q)
            else:
                value = _apart(op, mask.value, mask, q)
                total = value if total is None else op.Add(total, op.cast(value, total))
        return total

    def _closed(self, op: Ops, mask: Chosen, total: ir.Value | None, q: ir.Value) -> ir.Value:
        """What is added to scores, with a number in place of it where a condition closes them."""
        dtype = self._dtype if total is None else total.dtype
        opened = op.const(0.0, dtype) if total is None else total
        closed = op.const(mask.closed, dtype)
        pair = (opened, closed) if mask.opens else (closed, opened)
        return op.Where(_apart(op, mask.condition, mask, q), *pair)


def _apart(op: Ops, value: ir.Value, mask: Mask, q: ir.Value) -> ir.Value:
    """What a mask is or chooses by, with samples and heads apart as those of queries are."""
    return mask_apart(op, value, q) if mask.together else value
