"""Gradients of a model by its gradient graph and by central differences, in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxtrain.errors import FeedError, GraphError
from onnxtrain.gradients.api import gradient_graph
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.types import FLOATS, INTEGERS, DataType, type_string

Array = npt.NDArray[Any]

STEPS = (2.0**-17, 2.0**-20)
"""Lengths of a step. The first is near the cube root of float64's epsilon, where a difference is
most exact; the second is for steps that cross a corner (of Relu, say), and the better one counts.
"""
NOISE = 1e-4
"""Slopes below this share of the outputs are measured against it: a difference cannot see them."""


@dataclasses.dataclass(frozen=True)
class Checked:
    """The worst that was found for a parameter.

    Attributes:
        name: Name of the parameter.
        elements: How many numbers it has.
        error: Difference of the two slopes, relative to the terms that they are summed from.
        by_graph: Slope that the gradient graph gives.
        by_difference: Slope that the central difference gives.
    """

    name: str
    elements: int
    error: float
    by_graph: float
    by_difference: float


class Differences:
    """Compares the two for a model in double whose parameters are inputs.

    Args:
        model: The model; its outputs are differentiated, weighted at random.
        parameters: Values of the parameters, in double.
        seed: Seed of the inputs, weights and directions.
        size: Size of free dimensions of the inputs.

    Raises:
        GraphError: if the model gives other results when it is run again.
        NoGradientError: if an operator in the way has no gradient rule.
        NoKernelError: if an operator has no kernel for double.
    """

    def __init__(
        self, model: ir.Model, parameters: Mapping[str, Array], seed: int, size: int
    ) -> None:
        self.names = list(parameters)
        self._rng = np.random.default_rng(seed)
        self._ys = [str(value.name) for value in model.graph.outputs]
        self._forward = InferenceSession(model)
        data = [value for value in model.graph.inputs if value.name not in parameters]
        self._feeds = {str(v.name): random_input(v, size, self._rng) for v in data}
        self._feeds |= parameters
        self._at = self._outputs({})
        self._check_repeatable()
        self._weights = [
            self._rng.normal(size=y.shape) if y.size != 1 else np.ones(y.shape) for y in self._at
        ]
        self._grads = self._gradients(model, list(parameters))

    def _outputs(self, changed: Mapping[str, Array]) -> list[Array]:
        found = self._forward.run(self._ys, {**self._feeds, **changed})
        return [np.asarray(value) for value in found]

    def _check_repeatable(self) -> None:
        again = self._outputs({})
        for name, a, b in zip(self._ys, self._at, again, strict=True):
            if not np.array_equal(a, b, equal_nan=True):
                raise GraphError(
                    f"output '{name}' is another one each time the model runs; "
                    "differences of a random model mean nothing"
                )

    def _gradients(self, model: ir.Model, xs: Sequence[str]) -> dict[str, Array]:
        """The gradient of each parameter by the graph; zero where nothing depends on it."""
        made = gradient_graph(model, xs, self._ys, allow_unused=True)
        weights = dict(zip(self._ys, self._weights, strict=True))
        feeds = {**self._feeds, **{seed: weights[y] for y, seed in made.seeds.items()}}
        names = list(made.grads.values())
        found = InferenceSession(made.model).run(names, feeds) if names else []
        grads = dict(zip(made.grads, found, strict=True))
        return {x: np.asarray(grads.get(x, np.zeros_like(self._feeds[x]))) for x in xs}

    def check(self, name: str, samples: int) -> Checked:
        """Compare the slopes of a parameter along random directions; gives the worst."""
        found = [self._along(name) for _ in range(samples)]
        return max(found, key=lambda one: one.error)

    def _along(self, name: str) -> Checked:
        direction = self._rng.normal(size=self._feeds[name].shape)
        direction /= max(float(np.linalg.norm(direction)), np.finfo(np.float64).tiny)
        return min((self._step(name, direction, s) for s in STEPS), key=lambda one: one.error)

    def _step(self, name: str, direction: Array, step: float) -> Checked:
        here = self._feeds[name]
        ahead = self._outputs({name: here + step * direction})
        behind = self._outputs({name: here - step * direction})
        slopes = [(a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True)]
        difference, size = self._weighted(slopes)
        terms = direction * self._grads[name]
        by_graph = float(terms.sum())
        scale = max(size, float(np.abs(terms).sum()), NOISE * self._weighted(self._at)[1])
        error = abs(by_graph - difference) / scale if scale else 0.0
        shown = error if np.isfinite(error) else float("inf")
        return Checked(name, here.size, shown, by_graph, difference)

    def _weighted(self, values: Sequence[Array]) -> tuple[float, float]:
        """The weighted sum of values shaped like the outputs, and that of its magnitudes."""
        terms = [(w * v).ravel() for w, v in zip(self._weights, values, strict=True)]
        joined = np.concatenate(terms)
        return float(joined.sum()), float(np.abs(joined).sum())


def random_input(value: ir.Value, size: int, rng: np.random.Generator) -> Array:
    """Something to feed: normal numbers, or zeros and ones for what counts or indexes.

    Raises:
        FeedError: if the input is no tensor of numbers, or its rank is not known.
    """
    known = isinstance(value.type, ir.TensorType) and value.shape is not None
    if not known or value.dtype not in FLOATS | INTEGERS | {DataType.BOOL}:
        raise FeedError(
            f"cannot make up input '{value.name}' of {type_string(value.type)}\n"
            "  only tensors of numbers with a known rank can be checked"
        )
    assert value.shape is not None and value.dtype is not None
    dims = [dim if isinstance(dim, int) else size for dim in value.shape]
    numbers = rng.normal(size=dims) if value.dtype in FLOATS else rng.integers(0, 2, dims)
    return np.asarray(numbers, value.dtype.numpy())
