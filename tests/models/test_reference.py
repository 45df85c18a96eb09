"""Gradients of whole models agree with those that onnxruntime-training 1.19.2 computes."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import pytest
import torch
from gradients_of import errors, run_gradients, session_of

from onnxtrain.gradients import build_gradient_graph

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "models"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.onnx"))


def test_every_model_that_the_reference_takes_is_here() -> None:
    assert NAMES == ["bert", "gpt2", "llama", "resnet50", "vit"]


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_the_reference(name: str, device: str) -> None:
    model = onnx.load(GOLDEN / f"{name}.onnx")
    with np.load(GOLDEN / f"{name}.npz") as file:
        kept = {key: torch.from_numpy(file[key]) for key in file.files}
    expected = {k.removeprefix("grad/"): v for k, v in kept.items() if k.startswith("grad/")}
    inputs = {value.name: kept[value.name] for value in model.graph.input}
    graph = build_gradient_graph(model, list(expected), ys="scores")
    found = run_gradients(session_of(graph, device), inputs, kept["scores_grad"])
    assert max(errors(found, expected).values()) < 1e-4
