"""Every row differentiated twice: the gradient of the gradient against differences of it."""

import dataclasses
from typing import Any

import onnx_ir as ir
import pytest
import torch

from gradients import points
from onnxtrain.gradients.engine import backward
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.kernels.dtypes import from_torch
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.testing import gradcheck, trials
from onnxtrain.testing.case import Case
from onnxtrain.testing.gradcheck import STEP, WIDE_STEP, Point
from onnxtrain.testing.model import feeds_of, input_name

EXACT, ROUGH = 1e-6, 1e-2
"""Largest error of a difference, relative to what it is summed from: in float64, and where some
output or every type of the operator is float32."""


@dataclasses.dataclass(frozen=True)
class _Twice:
    """Feeds of a graph, its gradients, and their gradients in the same feeds."""

    feeds: dict[str, Any]
    first: InferenceSession
    both: InferenceSession
    firsts: list[str]
    seconds: dict[str, str]
    changed: list[str]


def _differentiate(at: Point) -> _Twice:
    model = prepare(load_model(at.model))
    graph, feeds = model.graph, feeds_of(at.case, at.inputs)
    xs = [v for i in at.wanted for v in graph.inputs if v.name == input_name(at.case, i)]
    seeds = {}
    for position, seed in at.seeds.items():
        y = graph.outputs[position]
        if y.type is None:  # some operators' types are not inferred but declared
            y.type = ir.TensorType(from_torch(seed.dtype))
        seeds[y] = _input(graph, f"seed_{y.name}", y)
        feeds[f"seed_{y.name}"] = seed
    firsts = list(backward(graph, xs, seeds).values())
    graph.outputs[:] = firsts
    first = InferenceSession(model, SessionOptions(seed=0))
    changed = [*xs, *seeds.values()]
    again = {v: _input(graph, f"again_{v.name}", v) for v in firsts}
    seconds = backward(graph, changed, again)
    graph.outputs.extend(seconds.values())
    both = InferenceSession(model, SessionOptions(seed=0))
    names = {str(x.name): str(grad.name) for x, grad in seconds.items()}
    moved = [str(x.name) for x in changed]
    return _Twice(feeds, first, both, [str(v.name) for v in firsts], names, moved)


def _input(graph: ir.Graph, name: str, like: ir.Value) -> ir.Value:
    value = ir.Value(name=name, type=like.type, shape=like.shape)
    graph.inputs.append(value)
    return value


def _noise(like: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.dtype)


@pytest.mark.parametrize("case", trials.twice(), ids=str)
def test_second_gradient_agrees_with_differences(case: Case) -> None:
    dtype = gradcheck.type_to_move(case)
    assert dtype is not None
    at = gradcheck.in_widest(points.drawn(case, dtype))
    step, bound = (STEP, EXACT) if gradcheck.is_exact(at) else (WIDE_STEP, ROUGH)
    twice = _differentiate(at)
    grads = twice.first.run_torch(twice.firsts, twice.feeds)
    weights = [_noise(grad, 7 + k) for k, grad in enumerate(grads)]
    moved = {n: _noise(twice.feeds[n], 99 + k) for k, n in enumerate(twice.changed)}

    def outputs(length: float) -> list[torch.Tensor]:
        feeds = twice.feeds | {n: twice.feeds[n] + length * d for n, d in moved.items()}
        return twice.first.run_torch(twice.firsts, feeds)

    pairs = zip(outputs(step), outputs(-step), weights, strict=True)
    expected = torch.cat([((a - b) / (2 * step) * w).flatten() for a, b, w in pairs])
    again = {f"again_{n}": w for n, w in zip(twice.firsts, weights, strict=True)}
    names = list(twice.seconds.values())
    found = twice.both.run_torch(names, twice.feeds | again) if names else []
    products = [(moved[n] * g).flatten() for n, g in zip(twice.seconds, found, strict=True)]
    ours = torch.cat([torch.zeros(1, dtype=torch.float64), *products])
    scale = float(expected.abs().sum() + ours.abs().sum())
    assert abs(float(expected.sum() - ours.sum())) <= bound * scale
