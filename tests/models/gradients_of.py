"""Gradients of the weights of a model: how they are computed and compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import torch
from architectures import Inputs

from onnxtrain import InferenceSession

Gradients = dict[str, torch.Tensor]


def session_of(graph: onnx.ModelProto, device: str) -> InferenceSession:
    return InferenceSession(graph, providers=[f"{device.upper()}ExecutionProvider"])


def run_gradients(session: InferenceSession, inputs: Inputs, seed: torch.Tensor) -> Gradients:
    """What a gradient graph gives besides the scores, by the name of the weight."""
    feeds = {key: value.numpy() for key, value in {**inputs, "scores_grad": seed}.items()}
    names = [value.name for value in session.get_outputs()]
    found = zip(names, session.run(None, feeds), strict=True)
    return {n.removesuffix("_grad"): torch.from_numpy(a) for n, a in found if n != "scores"}


def errors(found: Gradients, expected: Gradients) -> dict[str, float]:
    """The error of each gradient relative to its norm.

    Some are zero but for rounding (that of a bias which the next normalisation takes away again),
    so a norm counts at least for a hundredth of the norm of all.
    """
    assert found.keys() == expected.keys()
    floor = 0.01 * norm(expected)
    return {
        name: float((found[name].double() - grad.double()).norm() / max(grad.norm(), floor))
        for name, grad in expected.items()
    }


def norm(gradients: Gradients) -> float:
    return sum(float(grad.double().square().sum()) for grad in gradients.values()) ** 0.5


def measures(found: Gradients, exact: Gradients) -> tuple[float, float]:
    """The error of all gradients together, and the mean one, relative to their norms."""
    together = norm({name: found[name].double() - grad for name, grad in exact.items()})
    return together / norm(exact), root_mean_square(list(errors(found, exact).values()))


def root_mean_square(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
