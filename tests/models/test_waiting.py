"""Models give the same bits whatever their backward passes compute again or keep encoded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import architectures
import numpy as np
import pytest
import torch

import zoo
from onnxtrain import Trainer
from onnxtrain.transforms import recipe
from onnxtrain.transforms.backward import join
from onnxtrain.transforms.compress import EXACT
from onnxtrain.transforms.recompute import CHEAP, LAYERS, WAYS
from onnxtrain.transforms.recompute.again import SUFFIX

Trained = tuple[list[float], dict[str, np.ndarray], int]
CPU, GPU, JOINED = "cpu", "cuda", "cpu, joined as for a GPU"
DEVICES = [CPU, JOINED, pytest.param(GPU, marks=pytest.mark.gpu)]
NOTHING_CHEAP = {CPU: {"mlp"}, JOINED: {"mlp", "cnn"}, GPU: {"mlp", "cnn"}}
"""Models of which all that is kept is needed, or computed from as much by products.

On a GPU the gradient of a batch normalization makes its Relu again by itself.
"""


@pytest.fixture
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a model runs; all that is joined for a GPU has portable kernels, too."""
    if request.param == JOINED:
        joined = functools.partial(join, on_gpu=True, compiled=True)
        monkeypatch.setattr(recipe, "join", lambda model, **_: joined(model))
    return str(request.param)


def trained(make: Callable[..., Trainer], batch: dict[str, Any], **options: Any) -> Trained:
    """Losses, what changed, and how many nodes are computed twice."""
    one = make(seed=4, lr=1e-3, deterministic=True, **options)
    losses = [float(one.step(batch)) for _ in range(2)]
    moved = {n: np.asarray(one.state.parameters[n].data).copy() for n in one.mutable}
    graph = one.module.runner(training=True).model.graph
    return losses, moved, sum(str(node.name).endswith(SUFFIX) for node in graph)


def is_same(a: Trained, b: Trained) -> bool:
    same = a[1].keys() == b[1].keys() and a[0] == b[0]
    return same and all(np.array_equal(a[1][name], b[1][name]) for name in a[1])


@pytest.mark.parametrize("device", DEVICES, indirect=True)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", zoo.NAMES)
def test_small_models(name: str, precision: str, device: str) -> None:
    example = zoo.example(name)
    batch = {"x": example.inputs, "labels": example.labels}

    def make(**options: Any) -> Trainer:
        given = {"loss": "cross_entropy", "precision": precision, "device": device.split(",")[0]}
        return Trainer(example.model, **given, **options)

    plain = trained(make, batch)
    assert plain[2] == 0
    for way in WAYS:
        other = trained(make, batch, recompute=way)
        assert is_same(plain, other), way
        assert other[2] or name in NOTHING_CHEAP[device], way
    for way in (None, LAYERS):
        assert is_same(plain, trained(make, batch, recompute=way, compress=EXACT)), way


@pytest.mark.parametrize("name", architectures.NAMES)
def test_architectures_with_losses_in_torch(name: str) -> None:
    found = architectures.example(name)
    given = found.batch(2, 8)
    with torch.no_grad():
        labels = found.labels(found.scores(given))

    def loss(outputs: Any, batch: Any) -> torch.Tensor:
        return found.loss(outputs["scores"], batch["labels"])

    def make(**options: Any) -> Trainer:
        return Trainer(found.model, loss=loss, device="cpu", **options)

    batch = {**given, "labels": labels}
    plain = trained(make, batch)
    assert is_same(plain, trained(make, batch, recompute=CHEAP))
    assert is_same(plain, trained(make, batch, recompute=LAYERS, compress=EXACT))
