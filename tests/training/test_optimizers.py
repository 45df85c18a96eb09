"""Every optimizer block moves parameters as torch's optimizer of that name does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from onnxtrain import Trainer, artifacts, onnxblock
from onnxtrain.api import CheckpointState
from onnxtrain.errors import OptionError
from onnxtrain.onnxblock import optim
from onnxtrain.optim import AdamConfig, LambConfig, SGDConfig
from onnxtrain.training.build import OPTIMIZERS
from training.small import batch_of, load_module, load_optimizer, mlp, write_artifacts

RATE = 0.05


def trained(folder, block, steps: int = 4, dtype=np.float64):
    """Parameters before and after training, and the gradients of every step."""
    folder = write_artifacts(folder, mlp(dtype), optimizer=block)
    module = load_module(folder)
    optimizer = load_optimizer(folder, module)
    optimizer.set_learning_rate(RATE)
    parameters = {n: p for n, p in module.state.parameters if p.requires_grad}
    before = {name: p.data for name, p in parameters.items()}
    grads = []
    for step in range(steps):
        module(*batch_of(seed=step, dtype=dtype).values())
        grads.append({name: p.grad for name, p in parameters.items()})
        optimizer.step()
        module.lazy_reset_grad()
    return before, {name: p.data for name, p in parameters.items()}, grads


def by_torch(before, grads, make, prepare=lambda tensors: None):
    """The same gradients applied by an optimizer of torch."""
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in before.items()}
    optimizer = make(list(leaves.values()))
    for step in grads:
        for name, leaf in leaves.items():
            leaf.grad = torch.tensor(step[name])
        prepare(list(leaves.values()))
        optimizer.step()
    return {name: leaf.detach().numpy() for name, leaf in leaves.items()}


# The learning rate travels as float32 and attributes are float32: 1e-7 of the way is rounding.
CASES = {
    "adam": (optim.Adam(), lambda p: torch.optim.Adam(p, RATE)),
    "adam_decay": (
        optim.Adam(betas=(0.8, 0.99), eps=1e-3, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, RATE, betas=(0.8, 0.99), eps=1e-3, weight_decay=0.1),
    ),
    "sgd": (optim.SGD(), lambda p: torch.optim.SGD(p, RATE)),
    "sgd_decay": (
        optim.SGD(weight_decay=0.1),
        lambda p: torch.optim.SGD(p, RATE, weight_decay=0.1),
    ),
    "momentum": (
        optim.SGD(momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, RATE, momentum=0.9, weight_decay=0.01),
    ),
    "dampened": (
        optim.SGD(momentum=0.9, dampening=0.3),
        lambda p: torch.optim.SGD(p, RATE, momentum=0.9, dampening=0.3),
    ),
    "nesterov": (
        optim.SGD(momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, RATE, momentum=0.9, nesterov=True),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_like_torch(name, tmp_path):
    block, make = CASES[name]
    before, after, grads = trained(tmp_path, block)
    for key, expected in by_torch(before, grads, make).items():
        assert np.abs(expected - before[key]).max() > 1e-3
        np.testing.assert_allclose(after[key], expected, rtol=1e-6, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("block", [optim.SGD, optim.Adam, optim.Lamb, optim.AdamW])
def test_gradients_are_clipped_by_value(block, tmp_path):
    limit = 0.01
    before, after, grads = trained(tmp_path, block(clip_grad=optim.ClipGradValue(limit)))
    assert any((np.abs(g) > limit).any() for step in grads for g in step.values())
    clipped = [{k: np.clip(g, -limit, limit) for k, g in step.items()} for step in grads]
    if block is optim.SGD:
        expected = {k: v - RATE * sum(step[k] for step in clipped) for k, v in before.items()}
    elif block is optim.Lamb:
        expected = by_lamb(before, clipped)
    else:
        eps = 1e-8 if block is optim.Adam else 1e-6
        expected = by_adam(before, clipped, eps, after_root=block is optim.Adam)
    for key, value in expected.items():
        np.testing.assert_allclose(after[key], value, rtol=1e-6, atol=1e-6)


def by_adam(before, grads, eps, after_root):
    """Adam with epsilon added to the corrected root, or to the plain one."""
    result = {}
    for key, w in before.items():
        m = v = 0
        for t, step in enumerate(grads, start=1):
            g = step[key]
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            c1, root = 1 - 0.9**t, np.sqrt(1 - 0.999**t)
            scale = root / c1 / (np.sqrt(v) + (eps * root if after_root else eps))
            w = w - RATE * scale * m
        result[key] = w
    return result


def by_lamb(before, grads, decay=0.0, correct=True, low=-np.inf, high=np.inf, eps=1e-6):
    result = {}
    for key, w in before.items():
        m = v = 0
        for t, step in enumerate(grads, start=1):
            g = step[key]
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            c1, c2 = (1 - 0.9**t, 1 - 0.999**t) if correct else (1, 1)
            d = decay * w + (m / c1) / (np.sqrt(v / c2) + eps)
            ratio = np.clip(np.linalg.norm(w) / np.linalg.norm(d), low, high)
            w = w - RATE * ratio * d
        result[key] = w
    return result


@pytest.mark.parametrize(
    ("options", "truth"),
    [
        ({}, {}),
        ({"weight_decay": 0.1, "bias_correction": False}, {"decay": 0.1, "correct": False}),
        ({"ratio_min": 0.2, "ratio_max": 0.25, "eps": 0.5}, {"low": 0.2, "high": 0.25, "eps": 0.5}),
    ],
)
def test_lamb_follows_its_formula(options, truth, tmp_path):
    before, after, grads = trained(tmp_path, optim.Lamb(**options))
    for key, value in by_lamb(before, grads, **truth).items():
        np.testing.assert_allclose(after[key], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("block", [optim.SGD(momentum=0.9), optim.Lamb(), optim.Adam()])
def test_state_goes_through_a_checkpoint(block, tmp_path):
    folder = write_artifacts(tmp_path / "artifacts", optimizer=block)
    module = load_module(folder)
    optimizer = load_optimizer(folder, module)
    losses = []
    for step in range(4):
        if step == 2:
            CheckpointState.save_checkpoint(module.state, tmp_path / "saved", True)
        losses.append(module(*batch_of(seed=step).values())[0])
        optimizer.step()
        module.lazy_reset_grad()
    again = load_module(folder, tmp_path / "saved")
    optimizer = load_optimizer(folder, again)
    for step in (2, 3):
        assert again(*batch_of(seed=step).values())[0] == losses[step]
        optimizer.step()
        again.lazy_reset_grad()


@pytest.mark.parametrize("kind", artifacts.OptimType)
def test_every_kind_by_name(kind, tmp_path):
    folder = write_artifacts(tmp_path, optimizer=kind)
    module = load_module(folder)
    optimizer = load_optimizer(folder, module)
    before = float(module(*batch_of().values())[0])
    for _ in range(5):
        optimizer.step()
    module.lazy_reset_grad()
    assert float(module(*batch_of().values())[0]) < before


@pytest.mark.parametrize("block", [optim.Lamb(), optim.SGD(momentum=0.9, nesterov=True)])
def test_a_trainer_takes_every_block(block):
    trainer = Trainer(mlp(), loss="cross_entropy", optimizer=block, lr=0.1, device="cpu")
    losses = [float(trainer.step(batch_of())) for _ in range(10)]
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_trainer_knows_them_by_name(name):
    options = {"weight_decay": 0.01, "clip_grad_norm": 1.0, "lr": 0.05, "device": "cpu"}
    trainer = Trainer(mlp(), loss="cross_entropy", optimizer=name, **options)
    losses = [float(trainer.step(batch_of())) for _ in range(10)]
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (AdamConfig(), "AdamWOptimizer"),
        (LambConfig(), "LambOptimizer"),
        (SGDConfig(), "SGDOptimizerV2"),
    ],
)
def test_artifacts_take_configs(config, kind, tmp_path):
    folder = write_artifacts(tmp_path, optimizer=config)
    module = load_module(folder)
    optimizer = load_optimizer(folder, module)
    before = {name: p.data for name, p in module.state.parameters if p.requires_grad}
    module(*batch_of().values())
    optimizer.step()
    assert optimizer.kind == kind and before
    assert all((module.state.parameters[name].data != old).any() for name, old in before.items())


def test_more_parameters_than_one_node_takes():
    tensor = onnxblock.blocks.onnx.TensorProto(name="w", data_type=1, dims=[1])
    block = optim.Lamb()
    with onnxblock.empty_base() as accessor, accessor.building():
        names = block.build(([tensor] * 1030, []))
        nodes = [n for n in accessor.model.graph.node if n.op_type == "LambOptimizer"]
    assert [len(node.input) for node in nodes] == [5 + 5 * 1024, 5 + 5 * 6]
    assert names[1:] == (
        "updated_params",
        "updated_first_order_moments",
        "updated_second_order_moments",
    )


def test_impossible_options():
    with pytest.raises(OptionError, match="nesterov needs a momentum above 0"):
        optim.SGD(nesterov=True)
    with pytest.raises(OptionError, match="max_value must be a number above 0, not -1"):
        optim.ClipGradValue(-1)
