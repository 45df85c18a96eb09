"""Artifacts of onnxruntime-training 1.19.2 train rightly whose gradients have another shape.

Those of what was broadcast are not summed, and those of what was split lack parts.
"""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch

from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.errors import NodeError

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "unsummed"
STEPS, RATE = 5, 0.1
X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
TARGET = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
EXPONENTS = torch.tensor([[2, 3, 2, 3], [3, 2, 3, 2], [2, 2, 3, 3]]).double()

Weights = dict[str, torch.Tensor]
MODELS: dict[str, Callable[[torch.Tensor, Weights], torch.Tensor]] = {
    "where_row": lambda x, p: torch.where(x > 0, x, p["w"]),
    "where_column": lambda x, p: torch.where(x > 0, torch.tanh(x @ p["w"] + p["b"]), x),
    "where_scalar": lambda x, p: torch.where(x > 0, p["w"], x),
    "where_twice": lambda x, p: torch.where(x > 0, x, p["w"]) * p["w"],
    "where_hidden": lambda x, p: torch.where(x > 0, x, p["w"] + 1) * (p["w"] + 1),
    "where_folded": lambda x, p: torch.where(x.view(6, 2) > 0, x.view(6, 2), p["w"]).view(3, 4),
    "where_chain": lambda x, p: torch.where(x > 0, x, p["w"].expand(1, 4)),
    "pow_row": lambda x, p: x * p["w"] ** EXPONENTS,
    "cos_scalar": lambda x, p: x * torch.cos(p["w"]),
    "split_unused": lambda x, p: x + p["w"][4:],
    "split_hidden": lambda x, p: x * p["w"][:1],
    "split_middle": lambda x, p: torch.tanh((x @ p["w"])[:, 4:8]),
}
SUMMED = {
    "where_row": ("'w' from [N, 4] to [4]", "trains 'w';"),
    "where_column": ("'h' from [N, 4] to [N, 1]", "trains 'b', 'w';"),
    "where_scalar": ("'w' from [N, 4] to []", "trains 'w';"),
    "where_twice": ("'w' from [N, 4] to [4]", "trains 'w';"),
    "where_hidden": ("'v' from [N, 4] to [1, 4]", "trains 'w';"),
    "where_folded": ("'w' from [2*N, 2] to [1, 2]", "trains 'w';"),
    "where_chain": ("'v' from [N, 4] to [1, 4], 'w' from [1, 4] to [1]", "trains 'w';"),
    "pow_row": ("'w' from [3, 4] to [4]", "trains 'w';"),
}
"""What the warning says; a scalar's gradient with one axis is not worth one."""
FILLED = {
    "split_unused": ("in the gradients of 'w'\n", "trains 'w';"),
    "split_hidden": ("in the gradients of 'v'\n", "trains 'w';"),
    "split_middle": ("in the gradients of 'h'\n", "trains 'w';"),
}


def load(name: str) -> tuple[CheckpointState, Module, Optimizer]:
    folder = GOLDEN / name
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(RATE)
    return state, module, optimizer


def in_torch(name: str, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Weights after the steps, in float64."""
    params = {k: torch.tensor(v).double().requires_grad_() for k, v in weights.items()}
    optimizer = torch.optim.SGD(params.values(), lr=RATE)
    x, target = torch.tensor(X).double(), torch.tensor(TARGET).double()
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(MODELS[name](x, params), target).backward()
        optimizer.step()
    return {k: v.detach().numpy() for k, v in params.items()}


@pytest.mark.filterwarnings("ignore:the training model leaves")
@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_of_torch(name):
    state, module, optimizer = load(name)
    before = {n: p.data for n, p in state.parameters}
    expected = in_torch(name, before)
    for _ in range(STEPS):
        module(X, TARGET)
        optimizer.step()
        module.lazy_reset_grad()
    for key, value in expected.items():
        # five steps over at most 12 numbers near 1 in float32, each rounded to 6e-8
        np.testing.assert_allclose(state.parameters[key].data, value, rtol=0, atol=2e-6)
        assert np.abs(value - before[key]).max() > 1e-3


@pytest.mark.filterwarnings("ignore:the training model leaves")
def test_gradients_are_added_up_over_steps():
    state, module, _ = load("where_row")
    module(X, TARGET)
    once = state.parameters["w"].grad
    module(X, TARGET)
    np.testing.assert_allclose(state.parameters["w"].grad, 2 * once, rtol=1e-6)


@pytest.mark.parametrize("name", [*SUMMED, *FILLED])
def test_a_warning_names_what_is_mended_and_trained(name):
    with pytest.warns(UserWarning, match="the training model leaves") as caught:
        load(name)
    (warning,) = caught
    for text in {**SUMMED, **FILLED}[name]:
        assert text in str(warning.message)
    assert warning.filename == __file__


def test_what_needs_no_adding_up_is_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load("cos_scalar")


@pytest.mark.parametrize(
    ("name", "gradient", "shapes"),
    [
        ("split_unused", "b_grad", r"\(8,\) is not that of the value \(4,\)"),
        ("where_row", "w_grad", r"\(4,\) is not that of the value \(3, 4\)"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_gradients_that_nothing_tells_of_are_refused(name, gradient, shapes):
    """Without its name, a value is not known to be a gradient."""
    folder = GOLDEN / name
    model = onnx.load(folder / "training_model.onnx")
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["other" if n == gradient else n for n in names]
    module = Module(model, CheckpointState.load_checkpoint(folder / "checkpoint"))
    with pytest.raises(NodeError, match=shapes):
        module(X, TARGET)


@pytest.mark.filterwarnings("error")
def test_gradients_that_are_built_anew_are_not_warned_of():
    folder = GOLDEN / "where_row"
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, precision="bf16")
    module(X, TARGET)
    assert state.parameters["w"].grad.shape == (4,)
