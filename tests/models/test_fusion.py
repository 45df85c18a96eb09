"""Fusion finds every layer of exported transformers, and changes neither results nor gradients."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from architectures import Example, Inputs, example, optimized
from gradients_of import errors

from onnxtrain import InferenceSession
from onnxtrain.gradients import build_gradient_graph
from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.fusion import Report, fuse

LAYERS = 2
FOUND = {
    "vit": {"FlashAttention": LAYERS},
    "bert": {"FlashAttention": LAYERS},
    "gpt2": {"FlashAttention": LAYERS, "Gelu": LAYERS},
    "llama": {
        "FlashAttention": LAYERS,
        "RMSNormalization": 2 * LAYERS + 1,
        "Swish": LAYERS,
        "Gated": LAYERS,
        "Rotate": 2 * LAYERS,
    },
}
"""What must be found in models of two layers; Gelu and LayerNormalization are there elsewhere."""


def weights_of(whole: Example, model: onnx.ModelProto) -> list[str]:
    trained = {name for name, _ in whole.module.named_parameters(remove_duplicate=False)}
    return [tensor.name for tensor in model.graph.initializer if tensor.name in trained]


def fused(model: onnx.ModelProto, trained: list[str]) -> tuple[onnx.ModelProto, Report]:
    working = prepare(ir.from_proto(model))
    report = fuse(working, trained=trained)
    return ir.to_proto(working), report


def gradients(model: onnx.ModelProto, names: list[str], inputs: Inputs) -> dict[str, torch.Tensor]:
    """Scores and gradients of weights, with random weights on the scores."""
    feeds = {key: value.numpy() for key, value in inputs.items()}
    (scores,) = InferenceSession(model).run(None, feeds)
    seed = np.random.default_rng(3).normal(size=scores.shape).astype(scores.dtype)
    session = InferenceSession(build_gradient_graph(model, names, ["scores"]))
    found = session.run(None, {**feeds, "scores_grad": seed})
    return {o.name: torch.from_numpy(a) for o, a in zip(session.get_outputs(), found, strict=True)}


@pytest.mark.parametrize("name", FOUND)
def test_every_layer_is_found_and_gradients_stay_the_same(name: str) -> None:
    whole = example(name)
    names = weights_of(whole, whole.model)
    model, report = fused(whole.model, names)
    counts = report.counts()
    assert {key: counts.get(key, 0) for key in FOUND[name]} == FOUND[name]
    assert report.missed == []
    assert "Softmax" not in {node.op_type for node in model.graph.node}
    inputs = whole.batch(3, 7)
    old, new = (gradients(one, names, inputs) for one in (whole.model, model))
    assert max(errors(new, old).values()) < 1e-4


@pytest.mark.parametrize("name", FOUND)
def test_every_layer_is_found_behind_the_exporters_optimiser(name: str) -> None:
    model = optimized(name)
    _, report = fused(model, weights_of(example(name), model))
    counts = report.counts()
    assert {key: counts.get(key, 0) for key in FOUND[name]} == FOUND[name]
    assert report.missed == []


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_in_float64_the_results_are_equal(name: str) -> None:
    whole = example(name, torch.float64)
    names = weights_of(whole, whole.model)
    model, _ = fused(whole.model, names)
    inputs = whole.batch(2, 5)
    old, new = (gradients(one, names, inputs) for one in (whole.model, model))
    assert max(errors(new, old).values()) < 1e-11


def test_weights_keep_their_names() -> None:
    whole = example("llama")
    names = weights_of(whole, whole.model)
    model, _ = fused(whole.model, names)
    assert {tensor.name for tensor in model.graph.initializer} >= set(names)
    assert [v.name for v in model.graph.input] == [v.name for v in whole.model.graph.input]
    assert [v.name for v in model.graph.output] == [v.name for v in whole.model.graph.output]
