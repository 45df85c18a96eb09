"""Gradients of all weights of whole models agree with torch's, in three types and any batch."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import architectures
import numpy as np
import onnx
import pytest
import torch
from architectures import Example, Inputs, example, optimized
from gradients_of import Gradients, errors, measures, root_mean_square, run_gradients, session_of

from onnxtrain import Trainer
from onnxtrain.gradients import build_gradient_graph

SIZES = [(4, 6), (3, 9)]
"""Samples, and tokens of each where there are any."""
UNIFORM = [name for name, family in architectures.FAMILIES.items() if not family.mixed]
"""Models that compute in one type throughout; Llama normalises in float32 even as float64."""
BOUNDS = {"mobilenetv3": 1e-6, "gpt2": 1e-7}
"""Where a number of the formula is in the file as float32: 1/6 of HardSigmoid, √(2/π) of Gelu."""
ATTENTIVE = ["vit", "bert", "gpt2", "llama"]
"""Models without batch normalisation, which the exporter's optimiser would fold away."""


def moved(inputs: Inputs, dtype: torch.dtype, device: str) -> Inputs:
    return {
        key: value.to(device, dtype) if value.is_floating_point() else value.to(device)
        for key, value in inputs.items()
    }


def torch_gradients(
    whole: Example, inputs: Inputs, labels: torch.Tensor, dtype: torch.dtype, device: str = "cpu"
) -> Gradients:
    """Gradients of the loss in training mode; a weight with two names is there twice."""
    module = copy.deepcopy(whole.module).to(device, dtype).train()
    scores = whole.scores(moved(inputs, dtype, device), module)
    whole.loss(scores, labels.to(device)).backward()
    return {name: p.grad.cpu() for name, p in module.named_parameters(remove_duplicate=False)}


def trained_gradients(trainer: Trainer, inputs: Inputs, labels: torch.Tensor) -> Gradients:
    found = trainer.gradients({**inputs, "labels": labels})
    return {name: grad.cpu() for name, grad in found.items()}


def trainer_of(whole: Example, device: str) -> Trainer:
    def loss(outputs: Mapping[str, torch.Tensor], batch: Mapping[str, torch.Tensor]):
        return whole.loss(outputs["scores"], batch["labels"])

    return Trainer(whole.model, loss=loss, device=device)


def in_file(whole: Example, gradients: Gradients) -> Gradients:
    """The gradients under the names that weights have in the file, of which each has one."""
    names = {tensor.name for tensor in whole.model.graph.initializer}
    parameters = dict(whole.module.named_parameters(remove_duplicate=False))
    assert {id(parameters[name]) for name in names & parameters.keys()} == {
        id(p) for p in parameters.values()
    }
    return {name: grad for name, grad in gradients.items() if name in names}


@pytest.mark.parametrize("name", architectures.NAMES)
def test_gradients_in_float32_are_those_of_autograd(name: str, device: str) -> None:
    whole = example(name)
    trainer = trainer_of(whole, device)
    for samples, length in SIZES:
        inputs = whole.batch(samples, length)
        labels = whole.labels(whole.scores(inputs))
        expected = in_file(whole, torch_gradients(whole, inputs, labels, torch.float32))
        found = errors(trained_gradients(trainer, inputs, labels), expected)
        assert max(found.values()) < 1e-4, sorted(found.items(), key=lambda item: -item[1])[:5]


@pytest.mark.parametrize("name", architectures.NAMES)
def test_gradients_in_bfloat16_are_as_close_to_the_truth_as_those_of_autograd(
    name: str, device: str
) -> None:
    """All together, and in the mean over the weights, so that small ones count as well.

    Several batches are drawn, since it is luck on which side of zero rounding puts a number.
    """
    whole = example(name, torch.bfloat16)
    trainer = trainer_of(whole, device)
    ours: list[tuple[float, ...]] = []
    peers: list[tuple[float, ...]] = []
    for seed, (samples, length) in enumerate([(8, 6), (8, 9), (6, 9), (6, 6)]):
        inputs = whole.batch(samples, length, seed)
        labels = whole.labels(whole.scores(inputs))
        exact = in_file(whole, torch_gradients(whole, inputs, labels, torch.float64))
        peer = torch_gradients(whole, inputs, labels, torch.bfloat16, device)
        peers.append(measures({key: peer[key] for key in exact}, exact))
        ours.append(measures(trained_gradients(trainer, inputs, labels), exact))
    for found, own in zip(np.transpose(ours), np.transpose(peers), strict=True):
        assert root_mean_square(own) < 0.5, "these gradients are noise, nothing can be compared"
        assert root_mean_square(found) <= 2 * root_mean_square(own)


@pytest.mark.parametrize("name", UNIFORM)
def test_products_with_the_jacobian_in_float64_are_those_of_autograd(
    name: str, device: str
) -> None:
    """The model as it was saved, in evaluation form, with a gradient of the scores from outside."""
    whole = example(name, torch.float64)
    names = list(in_file(whole, dict(whole.module.named_parameters(remove_duplicate=False))))
    session = session_of(build_gradient_graph(whole.model, names, ys="scores"), device)
    for samples, length in SIZES:
        inputs = whole.batch(samples, length)
        expected, seed = products(whole, inputs)
        found = run_gradients(session, inputs, seed)
        assert max(errors(found, {k: expected[k] for k in names}).values()) < BOUNDS.get(name, 1e-9)


def products(whole: Example, inputs: Inputs) -> tuple[Gradients, torch.Tensor]:
    """Gradients of all weights for a random gradient of the scores, which comes second."""
    module = copy.deepcopy(whole.module)
    scores = whole.scores(inputs, module)
    seed = torch.randn(scores.shape, generator=torch.Generator().manual_seed(3), dtype=scores.dtype)
    scores.backward(seed)
    return {n: p.grad for n, p in module.named_parameters(remove_duplicate=False)}, seed


@pytest.mark.parametrize("name", ATTENTIVE)
def test_gradients_of_the_optimised_form_are_those_of_autograd(name: str, device: str) -> None:
    """Its weights have other names and may be transposed, and a shared one may be there twice."""
    whole, model = example(name), optimized(name)
    holders = weights_by_value(model, whole)
    assert all(holders.values()), [name for name, held in holders.items() if not held]
    graph = build_gradient_graph(model, [n for held in holders.values() for n in held], ys="scores")
    inputs = whole.batch(3, 9)
    expected, seed = products(whole, inputs)
    grads = run_gradients(session_of(graph, device), inputs, seed)
    found = {
        parameter: sum(grads[n].T if turned else grads[n] for n, turned in held.items())
        for parameter, held in holders.items()
    }
    assert max(errors(found, {k: expected[k] for k in found}).values()) < 1e-4


def weights_by_value(model: onnx.ModelProto, whole: Example) -> dict[str, dict[str, bool]]:
    """For each parameter the tensors of the file that hold it, and whether they are transposed."""
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    parameters = {n: p.detach().numpy() for n, p in whole.module.named_parameters()}
    return {
        parameter: {
            n: not np.array_equal(tensor, value)
            for n, tensor in tensors.items()
            if np.array_equal(tensor, value) or np.array_equal(tensor, value.T)
        }
        for parameter, value in parameters.items()
    }
