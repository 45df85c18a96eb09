"""Optimizer: updates, learning rate, step count and state."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from onnxtrain import artifacts, onnxblock
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.errors import CheckpointError, ModelError
from training.small import (
    WEIGHTS,
    batch_of,
    load_module,
    load_optimizer,
    mlp,
    write_artifacts,
)

BATCH = batch_of()


@pytest.fixture
def module(folder):
    return load_module(folder)


@pytest.fixture
def optimizer(folder, module):
    return load_optimizer(folder, module)


def values(module) -> dict[str, np.ndarray]:
    return {name: parameter.data for name, parameter in module.state.parameters}


def test_the_learning_rate_is_a_thousandth_unless_it_is_set(optimizer):
    assert optimizer.get_learning_rate() == 0.001
    optimizer.set_learning_rate(0.5)
    assert optimizer.get_learning_rate() == 0.5


def test_another_module_over_the_same_state_takes_no_gradients_away(folder, module):
    other = Module(folder / "training_model.onnx", module.state, folder / "eval_model.onnx")
    optimizer, before = load_optimizer(folder, module), values(module)
    module(*BATCH.values())
    assert np.abs(module.state.parameters["fc1.weight"].grad).max() > 0
    optimizer.step()
    after = values(other)
    assert {name for name in before if (before[name] != after[name]).any()} == set(WEIGHTS[:3])


def test_steps_are_counted(module, optimizer):
    assert optimizer.steps_taken == 0
    for _ in range(2):
        module(*BATCH.values())
        optimizer.step()
    assert optimizer.steps_taken == 2


@pytest.mark.parametrize(("other", "counted"), [("step", 1), ("never", 0)])
def test_a_step_that_the_model_did_not_make_is_not_counted(module, other, counted):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> o (float[1] learning_rate, int64[1] step,'
        " seq(float[N]) params, seq(float[N]) gradients) => (bool[1] done)"
        f" <int64[1] never = {{-1}}> {{ done = Equal(step, {other}) }}"
    )
    optimizer = Optimizer(model, module)
    module(*BATCH.values())
    optimizer.step()
    assert optimizer.steps_taken == counted


def test_adamw_follows_its_formula(module, optimizer):
    weights = values(module)
    first = {name: np.zeros_like(w, np.float64) for name, w in weights.items()}
    second = {name: np.zeros_like(w, np.float64) for name, w in weights.items()}
    optimizer.set_learning_rate(0.01)
    for step in range(1, 4):
        module(*BATCH.values())
        grads = {n: p.grad for n, p in module.state.parameters if p.requires_grad}
        optimizer.step()
        module.lazy_reset_grad()
        rate = 0.01 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        for name, grad in grads.items():
            first[name] = 0.9 * first[name] + 0.1 * grad
            second[name] = 0.999 * second[name] + 0.001 * grad.astype(np.float64) ** 2
            weights[name] = weights[name] - rate * first[name] / (np.sqrt(second[name]) + 1e-6)
        for name, value in values(module).items():
            np.testing.assert_allclose(value, weights[name], rtol=1e-5, atol=1e-6)


def test_sgd_subtracts_the_gradient(tmp_path):
    folder = write_artifacts(tmp_path, optimizer=artifacts.OptimType.SGD)
    module = load_module(folder)
    optimizer = load_optimizer(folder, module)
    optimizer.set_learning_rate(0.1)
    before = values(module)
    module(*BATCH.values())
    grads = {n: p.grad for n, p in module.state.parameters}
    optimizer.step()
    for name, value in values(module).items():
        grad = 0 if grads[name] is None else grads[name]
        np.testing.assert_allclose(value, before[name] - 0.1 * grad, rtol=1e-6, atol=1e-7)
    assert optimizer.steps_taken == 1


def test_frozen_parameters_stay(module, optimizer):
    before = values(module)
    module(*BATCH.values())
    optimizer.step()
    after = values(module)
    np.testing.assert_array_equal(after["fc2.bias"], before["fc2.bias"])
    assert all((after[name] != before[name]).any() for name in WEIGHTS[:3])


def test_gradients_are_clipped_together(tmp_path):
    block = onnxblock.optim.SGD(clip_grad=onnxblock.optim.ClipGradNorm(0.01))
    folder = write_artifacts(tmp_path, optimizer=block)
    module = load_module(folder)
    optimizer = load_optimizer(folder, module)
    optimizer.set_learning_rate(1.0)
    before = values(module)
    module(*BATCH.values())
    optimizer.step()
    moved = [values(module)[name] - before[name] for name in before]
    norm = np.sqrt(sum((move.astype(np.float64) ** 2).sum() for move in moved))
    np.testing.assert_allclose(norm, 0.01, rtol=1e-3)


def test_the_state_is_in_the_checkpoint_under_the_names_of_the_reference(module, optimizer):
    module(*BATCH.values())
    optimizer.step()
    moments = module.state.optimizer.moments
    assert moments.keys() == set(WEIGHTS[:3])
    assert all(set(own) == {"momentum0", "momentum1"} for own in moments.values())


def saved(module, path):
    CheckpointState.save_checkpoint(module.state, path, include_optimizer_state=True)
    return CheckpointState.load_checkpoint(path)


def test_state_for_some_parameters_only_is_refused(folder, module, optimizer, tmp_path):
    del module.state.optimizer.moments["fc1.bias"]
    saved(module, tmp_path / "part")
    again = load_module(folder, tmp_path / "part")
    with pytest.raises(CheckpointError, match=r"no optimizer state for 'fc1.bias'"):
        load_optimizer(folder, again)


def test_state_of_another_optimizer_is_refused(folder, tmp_path):
    sgd = write_artifacts(tmp_path / "sgd", optimizer=artifacts.OptimType.SGD)
    module = load_module(sgd)
    load_optimizer(sgd, module)
    saved(module, tmp_path / "with-sgd")
    again = load_module(folder, tmp_path / "with-sgd")
    with pytest.raises(CheckpointError, match=r"another optimizer: it has no momentum1 for 'fc1"):
        load_optimizer(folder, again)


def test_state_of_another_shape_is_refused(folder, module, optimizer, tmp_path):
    moments = module.state.optimizer.moments["fc1.bias"]
    moments["momentum0"] = moments["momentum0"][:3]
    saved(module, tmp_path / "short")
    again = load_module(folder, tmp_path / "short")
    with pytest.raises(CheckpointError, match=r"'fc1.bias' has shape \[3\], the parameter \[5\]"):
        load_optimizer(folder, again)


def test_other_models_are_not_optimizers(folder, module):
    with pytest.raises(ModelError, match="not an optimizer model: unknown input 'x'"):
        Optimizer(folder / "training_model.onnx", module)
    with pytest.raises(ModelError, match="no input 'params', no input 'gradients'"):
        Optimizer(ir.serde.serialize_model(_only_a_rate()), module)


def _only_a_rate() -> ir.Model:
    rate = ir.val("learning_rate", ir.DataType.FLOAT, [1])
    node = ir.node("Identity", [rate])
    node.outputs[0].name, node.outputs[0].type = "out", rate.type
    graph = ir.Graph([rate], [node.outputs[0]], nodes=[node], opset_imports={"": 17}, name="g")
    return ir.Model(graph, ir_version=8)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_other_element_types(tmp_path, dtype):
    folder = write_artifacts(tmp_path, mlp(dtype))
    module = load_module(folder)
    optimizer = load_optimizer(folder, module)
    batch = batch_of(dtype=dtype)
    losses = []
    for _ in range(5):
        losses.append(float(module(*batch.values())[0]))
        optimizer.set_learning_rate(0.02)
        optimizer.step()
        module.lazy_reset_grad()
    assert losses[-1] < 0.95 * losses[0]
    assert values(module)["fc1.weight"].dtype == dtype
