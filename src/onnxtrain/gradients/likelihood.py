"""The weighted negative log likelihood: loss_i = -w[t_i]·scores[i, t_i], and its derivatives."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxtrain.gradients.reduction import nonzero
from onnxtrain.gradients.rules import Grad
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """One loss.

    Attributes:
        op: Where nodes are emitted.
        scores: Log-probabilities [N, C, ...].
        target: Class numbers [N, ...].
        weights: One weight per class, or None.
        ignore: The class number that does not count, or None.
        reduction: ``mean`` (divided by the sum of the weights that counted), ``sum`` or ``none``.
    """

    op: Ops
    scores: ir.Value
    target: ir.Value
    weights: ir.Value | None
    ignore: ir.Value | None
    reduction: str

    def scores_grad(self, dy: ir.Value) -> ir.Value:
        """-w·dy at the targets, 0 elsewhere."""
        op = self.op
        places = op.unsqueeze(self._valid(), [1])
        values = op.Neg(op.unsqueeze(self.each(dy), [1]))
        return op.GatherElementsGrad(values, op.shape(self.scores), places, axis=1, _domain=MS)

    def each(self, dy: ir.Value) -> ir.Value:
        """w·dy of each sample, divided by Σw for a mean."""
        factor = self._factor()
        return self.op.Mul(self.op.Div(dy, self._total(factor)) if self._mean else dy, factor)

    def weight_grad(self, dy: ir.Value) -> Grad:
        """Σ -scores·dy over the samples of each class; a mean also loses loss·dy/Σw for each."""
        if self.weights is None:
            return None
        op, valid = self.op, self._valid()
        picked = op.GatherElements(self.scores, op.unsqueeze(valid, [1]), axis=1)
        losses = op.Mul(op.Neg(op.squeeze(picked, [1])), self._counts())
        if self._mean:
            factor = self._factor()
            total = self._total(factor)
            loss = op.Div(op.reduce_sum(op.Mul(losses, factor), None, keepdims=False), total)
            losses = op.Div(op.Sub(losses, op.Mul(loss, self._counts())), total)
        values = op.Mul(losses, dy)
        return op.GatherGrad(op.shape(self.weights), valid, values, axis=0, _domain=MS)

    @property
    def _mean(self) -> bool:
        return self.reduction == "mean"

    def _valid(self) -> ir.Value:
        """The targets with 0 in place of those that are ignored."""
        if self.ignore is None:
            return self.target
        ignored = self.op.Equal(self.target, self.ignore)
        return self.op.where(ignored, self.op.scalar(0, self.target), self.target)

    def _counts(self) -> ir.Value:
        """1 for samples that count, else 0."""
        if self.ignore is None:
            return self.op.filled(1, shape_of=self.target, like=self.scores)
        ignored = self.op.Equal(self.target, self.ignore)
        return self.op.cast(self.op.Not(ignored), self.scores)

    def _factor(self) -> ir.Value:
        """The weight of each sample."""
        if self.weights is None:
            return self._counts()
        return self.op.Mul(self.op.Gather(self.weights, self._valid(), axis=0), self._counts())

    def _total(self, factor: ir.Value) -> ir.Value:
        """Σw; 1 if nothing counts, where every gradient is 0."""
        return nonzero(self.op, self.op.reduce_sum(factor, None, keepdims=False))
