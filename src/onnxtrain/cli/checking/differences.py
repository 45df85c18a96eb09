"""Gradients of a model by its gradient graph and by central differences."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.gradients.api import gradient_graph
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.session import InferenceSession

Array = npt.NDArray[Any]

STEPS = {
    np.dtype(np.float64): (2.0**-17, 2.0**-20, 2.0**-26),
    np.dtype(np.float32): (2.0**-7, 2.0**-10),
}
"""Lengths of a step, by type. The first is near the cube root of the type's epsilon, where a
difference is most exact. Others are for steps that cross a corner (of Relu, say): one is taken
if those before were not good enough, and the best one counts.
"""
ENOUGH = 1e-2
"""Share of the step that an error may have without a second step."""
NOISE = 1e-4
"""Slopes below this share of the outputs are measured against it: a difference cannot see them."""
SHAKES = 3
"""How often the last digits of all parameters are changed, to see how well outputs are known."""
UNITS = 4
"""By about how many units in the last place."""


@dataclasses.dataclass(frozen=True)
class Checked:
    """The worst that was found for a parameter.

    Attributes:
        name: Name of the parameter.
        elements: How many numbers it has.
        error: Difference of the two slopes beyond what rounding makes of a slope of zero, relative
            to the terms that they are summed from.
        by_graph: Slope that the gradient graph gives.
        by_difference: Slope that the central difference gives.
    """

    name: str
    elements: int
    error: float
    by_graph: float
    by_difference: float


class Differences:
    """Compares the two for a model whose parameters are inputs.

    Numbers that are not finite stay as they are, and outputs that are not finite do not count.

    Args:
        model: The model.
        feeds: Values of all inputs; those of the parameters in the type of the comparison.
        names: Inputs that are differentiated.
        ys: Outputs that are differentiated, weighted at random.
        seed: Seed of the weights and directions.
        forward: A session of the model, if there is one already.

    Raises:
        GraphError: if the model gives other results when it is run again.
        NoGradientError: if an operator in the way has no gradient rule.
        NoKernelError: if an operator has no kernel for the type.
    """

    def __init__(
        self,
        model: ir.Model,
        feeds: Mapping[str, Any],
        names: Sequence[str],
        ys: Sequence[str],
        seed: int,
        forward: InferenceSession | None = None,
    ) -> None:
        self.names = list(names)
        self._rng = np.random.default_rng(seed)
        self._ys = list(ys)
        self._forward = forward or InferenceSession(model, SessionOptions(seed=0))
        self._feeds = dict(feeds)
        self._at = self._outputs({})
        self._check_repeatable()
        self._weights = [self._weight(y) for y in self._at]
        self._grads = self._gradients(model)

    def _outputs(self, changed: Mapping[str, Array]) -> list[Array]:
        found = self._forward.run(self._ys, {**self._feeds, **changed})
        return [np.asarray(value) for value in found]

    def _weight(self, y: Array) -> Array:
        drawn = self._rng.normal(size=y.shape) if y.size != 1 else np.ones(y.shape)
        return np.where(np.isfinite(y), drawn, 0).astype(y.dtype)

    def check_finite(self) -> None:
        """Refuse a model of which nothing counts.

        Raises:
            GraphError: if no number of the outputs is finite.
        """
        if any(y.size for y in self._at) and not any(np.isfinite(y).any() for y in self._at):
            shown = ", ".join(f"'{name}'" for name in self._ys)
            raise GraphError(
                f"there is nothing to compare: no number of {shown} is finite\n"
                "  look for weights that are not, or give other inputs with --data"
            )

    def _check_repeatable(self) -> None:
        again = self._outputs({})
        for name, a, b in zip(self._ys, self._at, again, strict=True):
            if not np.array_equal(a, b, equal_nan=True):
                raise GraphError(
                    f"output '{name}' is another one each time the model runs; "
                    "differences of a random model mean nothing"
                )

    def _gradients(self, model: ir.Model) -> dict[str, Array]:
        """The gradient of each parameter by the graph; zero where nothing depends on it."""
        made = gradient_graph(model, self.names, self._ys, allow_unused=True)
        weights = dict(zip(self._ys, self._weights, strict=True))
        feeds = {**self._feeds, **{seed: weights[y] for y, seed in made.seeds.items()}}
        names = list(made.grads.values())
        session = InferenceSession(made.model, SessionOptions(seed=0))
        grads = dict(zip(made.grads, session.run(names, feeds) if names else [], strict=True))
        return {x: np.asarray(grads.get(x, np.zeros_like(self._feeds[x]))) for x in self.names}

    def check(self, name: str, samples: int) -> Checked:
        """Compare the slopes of a parameter along random directions; gives the worst."""
        return max((self._along([name]) for _ in range(samples)), key=lambda one: one.error)

    def check_together(self, samples: int) -> Checked:
        """Compare the slopes along directions that move all parameters; gives the worst."""
        return max((self._along(self.names) for _ in range(samples)), key=lambda one: one.error)

    def _along(self, names: Sequence[str]) -> Checked:
        drawn = {name: self._rng.normal(size=self._feeds[name].shape) for name in names}
        drawn = {n: np.where(np.isfinite(self._feeds[n]), d, 0) for n, d in drawn.items()}
        length = float(np.sqrt(sum(float((d * d).sum()) for d in drawn.values())))
        dtype = self._feeds[names[0]].dtype
        directions = {n: (d / (length or 1.0)).astype(dtype) for n, d in drawn.items()}
        tries: list[Checked] = []
        for step in STEPS[dtype]:
            tries.append(self._step(directions, step))
            if tries[-1].error < ENOUGH * step:
                break
        return min(tries, key=lambda one: one.error)

    def _step(self, directions: Mapping[str, Array], step: float) -> Checked:
        ahead, behind = (
            self._outputs({n: self._feeds[n] + h * d for n, d in directions.items()})
            for h in (step, -step)
        )
        with np.errstate(invalid="ignore"):
            slopes = [(a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True)]
        difference, size = self._weighted(slopes)
        terms = np.concatenate([(d * self._grads[n]).ravel() for n, d in directions.items()])
        by_graph = float(terms.sum(dtype=np.float64))
        scale = max(size, float(np.abs(terms).sum()), NOISE * self._weighted(self._at)[1])
        error = abs(by_graph - difference) / scale if scale else 0.0
        if error >= ENOUGH * step:
            error = max(error - self._rounding / (STEPS[terms.dtype][0] * scale), 0.0)
        shown = error if np.isfinite(error) else float("inf")
        elements = sum(d.size for d in directions.values())
        return Checked(", ".join(directions), elements, shown, by_graph, difference)

    @functools.cached_property
    def _rounding(self) -> float:
        """How far the weighted outputs move if only the last digits of the parameters do.

        Divided by a step, that is what a difference can give where the slope is zero. A jump, that
        of Floor at a whole number for one, is no rounding: what moves by more than half of the
        digits of the outputs counts as exact to its own last digits.
        """
        eps = {y.dtype: float(np.finfo(y.dtype).eps) for y in self._at}
        rng = np.random.default_rng(0)
        moved = [np.abs(y) * eps[y.dtype] for y in self._at]
        for _ in range(SHAKES):
            for index, found in enumerate(self._outputs(self._shaken(rng))):
                y = self._at[index]
                with np.errstate(invalid="ignore"):
                    off = np.abs(found - y)
                    jump = ~(off <= np.sqrt(eps[y.dtype]) * np.abs(y).max(initial=0))
                moved[index] = np.where(jump, moved[index], np.maximum(moved[index], off))
        return self._weighted(moved)[1]

    def _shaken(self, rng: np.random.Generator) -> dict[str, Array]:
        """The parameters with other last digits."""
        shaken = {}
        for name in self.names:
            x = self._feeds[name]
            units = UNITS * np.finfo(x.dtype).eps * rng.normal(size=x.shape)
            shaken[name] = (x + x * units).astype(x.dtype)
        return shaken

    def _weighted(self, values: Sequence[Array]) -> tuple[float, float]:
        """The weighted sum of values shaped like the outputs, and that of its magnitudes."""
        pairs = zip(self._weights, values, strict=True)
        with np.errstate(invalid="ignore"):
            terms = [np.where(w == 0, 0, w.astype(np.float64) * v).ravel() for w, v in pairs]
        joined = np.concatenate(terms)
        return float(joined.sum()), float(np.abs(joined).sum())
