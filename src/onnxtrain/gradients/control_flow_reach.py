"""Which values that go round in a loop have a gradient."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from onnxtrain.gradients.engine import carries_gradient, depends_on


class Reach:
    """What depends on what over any number of iterations.

    Args:
        body: The body of a loop.
        carried: What comes into an iteration.
        results: What goes on to the next one, in the same order.
        wanted: Values from outside whose gradients are wanted.
    """

    def __init__(
        self,
        body: ir.Graph,
        carried: Sequence[ir.Value],
        results: Sequence[ir.Value],
        wanted: Sequence[ir.Value],
    ) -> None:
        self.body, self.carried, self.results = body, carried, results
        self.wanted = wanted

    def used(
        self,
        ends: Collection[int],
        rows: Collection[ir.Value],
        initial: Sequence[ir.Value | None],
    ) -> list[int]:
        """Carried values that some wanted value leads to and that lead to some gradient.

        Args:
            ends: Carried values whose gradient comes in after the last iteration.
            rows: Other results whose gradients come in, in every iteration.
            initial: What the carried values start with.
        """
        live = self._live(initial)
        used = {k for k in ends if k in live}
        leads = {k: depends_on(self.body, [self.carried[k]]) for k in live}
        while True:
            targets = {self.results[k] for k in used} | set(rows)
            more = {k for k in live if k in used or leads[k] & targets}
            if more == used:
                return sorted(used)
            used = more

    def _live(self, initial: Sequence[ir.Value | None]) -> set[int]:
        """Carried values that are computed from something wanted, in some iteration."""
        possible = {k for k, value in enumerate(self.carried) if carries_gradient(value)}
        live = {k for k in possible if initial[k] in self.wanted}
        while True:
            reached = depends_on(self.body, [*self.wanted, *(self.carried[k] for k in live)])
            more = live | {k for k in possible if self.results[k] in reached}
            if more == live:
                return live
            live = more
