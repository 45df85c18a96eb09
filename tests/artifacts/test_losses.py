"""Losses by name, with all that they are by default: values and steps are those of torch."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from onnxtrain import artifacts
from onnxtrain.errors import ModelError
from training.small import load_module, load_optimizer, model_of, normal

RATE = 0.5
LABELS = np.array([2, 0, 1, 1, 2])
SIDES = np.array([1, -1, -1, 1, 1], np.float32)
SHARES = np.random.default_rng(7).uniform(0.1, 0.9, (5, 3)).astype(np.float32)
NEAR = {"target": 3 * normal(5, 3, seed=8)}
"""On both sides of the bends of robust losses."""
SEQUENCES = {
    "targets": np.array([[1, 2], [2, 2], [1, 0]]),
    "input_lengths": np.array([5, 5, 4]),
    "target_lengths": np.array([2, 2, 1]),
}


def contrastive(a: torch.Tensor, b: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    distance = F.pairwise_distance(a, b)
    far = torch.relu(1 - distance) ** 2
    return (target * distance**2 + (1 - target) * far).mean() / 2


def info_nce(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    scores = F.normalize(a) @ F.normalize(b).T / 0.1
    return F.cross_entropy(scores, torch.arange(len(a)))


Truth = Callable[..., torch.Tensor]
KINDS: dict[str, tuple[Truth, int, str, Mapping[str, Any]]] = {
    "MSELoss": (F.mse_loss, 1, "Identity", NEAR),
    "CrossEntropyLoss": (F.cross_entropy, 1, "Identity", {"labels": LABELS}),
    "BCEWithLogitsLoss": (
        F.binary_cross_entropy_with_logits,
        1,
        "Identity",
        {"target": SHARES},
    ),
    "L1Loss": (F.l1_loss, 1, "Identity", NEAR),
    "HuberLoss": (F.huber_loss, 1, "Identity", NEAR),
    "SmoothL1Loss": (F.smooth_l1_loss, 1, "Identity", NEAR),
    "KLDivLoss": (
        lambda x, y: (y * (y.log() - x)).mean(),
        1,
        "LogSoftmax",
        {"target": SHARES},
    ),
    "BCELoss": (F.binary_cross_entropy, 1, "Sigmoid", {"target": SHARES}),
    "CTCLoss": (F.ctc_loss, 1, "LogSoftmax", SEQUENCES),
    "ContrastiveLoss": (contrastive, 2, "Identity", {"target": (SIDES + 1) / 2}),
    "CosineEmbeddingLoss": (F.cosine_embedding_loss, 2, "Identity", {"target": SIDES}),
    "TripletMarginLoss": (F.triplet_margin_loss, 3, "Identity", {}),
    "InfoNCELoss": (info_nce, 2, "Identity", {}),
    "LikelihoodLoss": (lambda p, y: F.nll_loss(p.log(), y), 1, "Softmax", {"labels": LABELS}),
}
"""The loss in torch, how many outputs it takes, what they have gone through, and targets."""
AFTER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Identity": lambda x: x,
    "Sigmoid": torch.sigmoid,
    "LogSoftmax": lambda x: torch.log_softmax(x, -1),
    "Softmax": lambda x: torch.softmax(x, -1),
}


SINCE = {"CTCLoss": 13, "InfoNCELoss": 11}
"""Losses that old opsets have no operators for."""


@pytest.mark.parametrize("opset", [1, 5, 6, 7, 8, 9, 12, 17])
@pytest.mark.parametrize("kind", artifacts.LossType, ids=lambda kind: kind.name)
def test_a_loss_by_name_is_that_of_torch(
    kind: artifacts.LossType, opset: int, tmp_path: pathlib.Path
) -> None:
    if opset < SINCE.get(kind.name, 0):
        with pytest.raises(ModelError, match=f"{kind.name} needs opset {SINCE[kind.name]}, .* has"):
            compare(kind, opset, tmp_path)
    else:
        compare(kind, opset, tmp_path)


def compare(kind: artifacts.LossType, opset: int, tmp_path: pathlib.Path) -> None:
    truth, count, after, targets = KINDS[kind.name]
    axes, sizes = ("T,N", (5, 3)) if kind.name == "CTCLoss" else ("N", (5,))
    weights = {f"w{k}": normal(4, 3, seed=k + 1) for k in range(count)}
    nodes = " ".join(f"h{k} = MatMul(x, w{k}) y{k} = {after}(h{k})" for k in range(count))
    outputs = ", ".join(f"float[{axes},3] y{k}" for k in range(count))
    artifacts.generate_artifacts(
        model_of(f"(float[{axes},4] x) => ({outputs}) {{ {nodes} }}", weights, opset=opset),
        requires_grad=list(weights),
        loss=kind,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=tmp_path,
    )
    x = normal(*sizes, 4, seed=9)
    leaves = [torch.tensor(w, requires_grad=True) for w in weights.values()]
    ends = [AFTER[after](torch.from_numpy(x) @ w) for w in leaves]
    expected = truth(*ends, *(torch.from_numpy(t) for t in targets.values()))
    expected.backward()

    module = load_module(tmp_path)
    assert module.input_names() == ["x", *targets]
    value = expected.detach().numpy()
    np.testing.assert_allclose(module.eval()(x, *targets.values()), value, rtol=1e-5)
    np.testing.assert_allclose(module.train()(x, *targets.values()), value, rtol=1e-5)
    optimizer = load_optimizer(tmp_path, module)
    optimizer.set_learning_rate(RATE)
    optimizer.step()
    for name, leaf in zip(weights, leaves, strict=True):
        assert leaf.grad is not None
        stepped = weights[name] - RATE * leaf.grad.numpy()
        np.testing.assert_allclose(module.state.parameters[name].data, stepped, atol=1e-6)
