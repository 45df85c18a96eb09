"""The gradient of a row's operator, as a graph that runs, by autograd, and by differences."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import onnx
import onnx_ir as ir
import torch

from onnxtrain.gradients.engine import backward, can_carry_gradient
from onnxtrain.gradients.rules import Rule, find_rule
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.kernels.dtypes import from_torch
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.testing.case import Case
from onnxtrain.testing.model import (
    Value,
    draw,
    feeds_of,
    input_name,
    named,
    on_device,
    one_node_model,
    provider_on,
)
from onnxtrain.testing.table import opsets, trial_types
from onnxtrain.testing.truth import reference
from onnxtrain.testing.uncompared import pattern_of
from onnxtrain.types import DataType

STEP = 2.0**-17
"""Step of a central difference: near the cube root of float64's epsilon, where the error of the
difference (about STEP² = 6e-11) and that of rounding (about eps/STEP = 3e-11) are equal."""
WIDE_STEP = 2.0**-7
"""The same for float32 (about 6e-5 and 8e-6)."""


@dataclasses.dataclass(frozen=True)
class Point:
    """Where a gradient is taken: inputs, and the gradient that comes in at each output.

    Attributes:
        case: The row.
        inputs: Rounded values of all inputs.
        seeds: Incoming gradient by position among the named outputs; floating point ones only.
    """

    case: Case
    inputs: Sequence[Value]
    seeds: dict[int, torch.Tensor]

    @functools.cached_property
    def model(self) -> onnx.ModelProto:
        """The model of the row's one node."""
        return one_node_model(self.case, self.inputs)

    @functools.cached_property
    def forward(self) -> InferenceSession:
        """A session of that model."""
        return InferenceSession(self.model, SessionOptions(seed=0))

    @property
    def wanted(self) -> list[int]:
        """Positions of the inputs whose gradients are compared."""
        return differentiable(self.case, self.inputs)


def differentiable(case: Case, inputs: Sequence[Value]) -> list[int]:
    """Positions of fed floating point tensors that a row calls differentiable."""
    return [
        index
        for index, (item, value) in enumerate(zip(case.inputs, inputs, strict=True))
        if item is not None
        and item.grad
        and not item.constant
        and isinstance(value, torch.Tensor)
        and value.dtype.is_floating_point
    ]


def rule_of(case: Case) -> Rule | None:
    """The gradient rule (or declared zero) of a row's operator."""
    return find_rule(case.domain, case.op, opsets(case)[case.domain])


def type_for_differences(case: Case) -> DataType | None:
    """The type in which a row's gradient is compared with differences: double if it can be.

    None if it is not compared: no rule, no input to move, or a reason in ``UNCOMPARED``.
    """
    rule = rule_of(case)
    if rule is None or (rule.fn is None and not case.gradient) or pattern_of(case) is not None:
        return None
    return type_to_move(case)


def type_to_move(case: Case) -> DataType | None:
    """Double or else float, if a row has inputs to differentiate by in that type."""
    tried = trial_types(case)
    for dtype in (DataType.DOUBLE, DataType.FLOAT):
        if dtype in tried and differentiable(case, draw(case, dtype)):
            return dtype
    return None


def in_widest(at: Point) -> Point:
    """The same point, seen through the outputs of the widest type alone."""
    widest = max((seed.dtype.itemsize for seed in at.seeds.values()), default=0)
    seeds = {p: seed for p, seed in at.seeds.items() if seed.dtype.itemsize == widest}
    return at if len(seeds) == len(at.seeds) else Point(at.case, at.inputs, seeds)


def is_exact(at: Point) -> bool:
    """Whether everything that a difference is taken of has the precision of float64."""
    values = [*(at.inputs[i] for i in at.wanted), *at.seeds.values()]
    return all(isinstance(v, torch.Tensor) and v.dtype == torch.float64 for v in values)


def point(case: Case, inputs: Sequence[Value], outputs: Sequence[Any]) -> Point:
    """A point with random incoming gradients, shaped and typed like the outputs."""
    generator = torch.Generator().manual_seed(1)
    compared = _compared(case)
    seeds = {
        position: torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.dtype)
        for position, value in enumerate(outputs)
        if position in compared
        and isinstance(value, torch.Tensor)
        and value.dtype.is_floating_point
    }
    return Point(case, inputs, seeds)


def drawn(case: Case, dtype: DataType) -> Point:
    """The point of a row's own inputs in one type."""
    at = Point(case, draw(case, dtype), {})
    feeds = {k: on_device(v, "cpu") for k, v in feeds_of(case, at.inputs).items()}
    at.seeds.update(point(case, at.inputs, at.forward.run_torch(None, feeds)).seeds)
    return at


def widened(at: Point) -> Point:
    """The same point, exactly, in float64."""
    inputs = [
        value.to(torch.float64)
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point
        else value
        for value in at.inputs
    ]
    return Point(at.case, inputs, {p: seed.to(torch.float64) for p, seed in at.seeds.items()})


def _compared(case: Case) -> list[int]:
    """Positions, among the named outputs, of those that have a defined value."""
    return [
        position
        for position, index in enumerate(named(case))
        if case.compare is None or index in case.compare
    ]


def by_graph(at: Point, device: str = "cpu") -> list[torch.Tensor]:
    """The gradients that the gradient graph of the one-node model gives."""
    model = prepare(load_model(at.model))
    graph = model.graph
    xs = [v for i in at.wanted for v in graph.inputs if v.name == input_name(at.case, i)]
    seeds: dict[ir.Value, ir.Value] = {}
    for position, seed in at.seeds.items():
        y = graph.outputs[position]
        if y.type is None:  # some operators' types are not inferred but declared
            y.type = ir.TensorType(from_torch(seed.dtype))
        if can_carry_gradient(y):
            seeds[y] = ir.Value(name=f"seed_{y.name}", type=y.type, shape=y.shape)
    graph.inputs.extend(seeds.values())
    grads = backward(graph, xs, seeds)
    graph.outputs.extend(grads.values())
    feeds = feeds_of(at.case, at.inputs)
    feeds |= {f"seed_{graph.outputs[p].name}": value for p, value in at.seeds.items()}
    session = InferenceSession(model, SessionOptions(seed=0), [provider_on(device)])
    names = [str(grad.name) for grad in grads.values()]
    moved = {name: on_device(value, device) for name, value in feeds.items()}
    found = dict(zip(grads, session.run_torch(names, moved) if names else [], strict=True))
    return [
        found[x].cpu() if x in found else torch.zeros_like(at.inputs[i])  # type: ignore[arg-type]
        for x, i in zip(xs, at.wanted, strict=True)
    ]


def by_autograd(at: Point) -> list[torch.Tensor]:
    """The gradients by torch through the row's reference; zero for what it cannot reach."""
    leaves: list[Any] = [
        value.detach().clone().requires_grad_(index in at.wanted)
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point
        else value
        for index, value in enumerate(at.inputs)
    ]
    xs = [leaves[index] for index in at.wanted]
    results = reference(at.case, leaves)
    ys = [(results[p], seed) for p, seed in at.seeds.items() if results[p].requires_grad]
    if not ys:
        return [torch.zeros_like(x) for x in xs]
    seeds = [seed.to(y.dtype) for y, seed in ys]
    found = torch.autograd.grad([y for y, _ in ys], xs, seeds, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(xs, found, strict=True)]


@dataclasses.dataclass(frozen=True)
class Slope:
    """A directional derivative, and the sum of the magnitudes that it was summed from."""

    value: float
    magnitude: float


def along(direction: Sequence[torch.Tensor], grads: Sequence[torch.Tensor]) -> Slope:
    """The derivative along a direction that gradients predict."""
    terms = [(d * g).flatten() for d, g in zip(direction, grads, strict=True)]
    return _slope(terms)


def by_differences(at: Point, direction: Sequence[torch.Tensor]) -> Slope:
    """The same derivative by a central difference of the forward model."""
    step = STEP if is_exact(at) else WIDE_STEP

    def outputs(length: float) -> list[Any]:
        inputs = list(at.inputs)
        for index, d in zip(at.wanted, direction, strict=True):
            moved = inputs[index] + length * d  # type: ignore[operator]
            inputs[index] = moved.to(inputs[index].dtype)  # type: ignore[union-attr]
        return at.forward.run_torch(None, feeds_of(at.case, inputs))

    ahead, behind = outputs(step), outputs(-step)
    terms = [
        (seed * (ahead[position] - behind[position]) / (2 * step)).flatten()
        for position, seed in at.seeds.items()
    ]
    return _slope(terms)


def _slope(terms: Sequence[torch.Tensor]) -> Slope:
    joined = torch.cat(list(terms)) if terms else torch.zeros(0)
    return Slope(float(joined.sum()), float(joined.abs().sum()))


def random_direction(at: Point, seed: int) -> list[torch.Tensor]:
    """A random step for each differentiable input."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(at.inputs[i].shape, generator=generator, dtype=torch.float64)  # type: ignore[union-attr]
        for i in at.wanted
    ]
