"""Training models in float32 that a Module runs in 16 bits."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx_ir as ir
import pytest

from onnxtrain.api import CheckpointState, Module
from onnxtrain.errors import OptionError
from training.mixed import DEVICES, PRECISIONS, cnn, transformer
from training.small import WEIGHTS, batch_of, load_module, load_optimizer, mlp, write_artifacts

BOUNDS = {"bf16": 4 * 2.0**-8, "fp16": 4 * 2.0**-11}
"""Four roundings of the type."""
GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "training"
MODELS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


def inputs_of(name: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 8)
    if name == "cnn":
        return [rng.standard_normal((8, 3, 8, 8), dtype=np.float32), labels]
    if name == "transformer":
        return [rng.integers(0, 20, (8, 6)), rng.random((8, 1, 1, 6)) > 0.2, labels]
    batch = batch_of()
    return [batch["x"], batch["labels"]]


def artifacts_of(name: str, folder: pathlib.Path, **options: str) -> pathlib.Path:
    model = MODELS[name]()
    weights = [t.name for t in model.graph.initializer if t.data_type == 1 and t.dims]
    weights = [w for w in weights if w not in ("m", "v", "half", "least")]
    given = {"requires_grad": weights, "frozen_params": [], "additional_output_names": None}
    return write_artifacts(folder, model, **given, **options)


def losses(folder: pathlib.Path, name: str, steps: int = 10, **options: str) -> list[float]:
    module = load_module(folder, **options)
    optimizer = load_optimizer(folder, module)
    optimizer.set_learning_rate(0.02)
    found = []
    for _ in range(steps):
        found.append(float(module(*inputs_of(name))))
        optimizer.step()
        module.lazy_reset_grad()
    return found


def types_of(module: Module) -> set[ir.DataType | None]:
    return {v.dtype for node in module._train_model.graph for v in node.outputs}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_a_module_trains_like_artifacts_of_16_bits(
    name: str, precision: str, device: str, tmp_path: pathlib.Path
):
    folder = artifacts_of(name, tmp_path / "wide")
    found = losses(folder, name, device=device, precision=precision)
    first = losses(folder, name, steps=1, device=device)[0]
    assert found[0] != first, "nothing was rounded"
    assert found[0] == pytest.approx(first, rel=BOUNDS[precision]) and found[-1] < found[0]
    narrow = artifacts_of(name, tmp_path / "narrow", precision=precision)
    np.testing.assert_allclose(found, losses(narrow, name, device=device), rtol=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_inputs_and_outputs_keep_their_names(precision: str, tmp_path: pathlib.Path):
    folder = artifacts_of("mlp", tmp_path / "a")
    module, plain = load_module(folder, precision=precision), load_module(folder)
    assert (module.scaling is None) == (precision == "bf16")
    assert module.input_names() == plain.input_names() == ["x", "labels"]
    assert module.output_names() == plain.output_names()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_artifacts_of_onnxruntime_train_in_16_bits(name: str, precision: str):
    folder = GOLDEN / name
    batch, expected = np.load(folder / "batch.npz"), np.load(folder / "numbers.npz")["losses"]
    module = load_module(folder, precision=precision)
    optimizer = load_optimizer(folder, module)
    given, found = [batch[key] for key in module.input_names()], []
    for _ in expected:
        found.append(float(module(*given)))
        optimizer.step()
        module.lazy_reset_grad()
    assert found[0] == pytest.approx(expected.flat[0], rel=BOUNDS[precision])
    assert found[-1] < found[0] and found[0] != expected.flat[0]


def test_parameters_gradients_and_evaluation_stay_wide(tmp_path: pathlib.Path):
    folder = write_artifacts(tmp_path / "a")
    module, plain = load_module(folder, precision="bf16"), load_module(folder)
    assert ir.DataType.BFLOAT16 in types_of(module) and ir.DataType.BFLOAT16 not in types_of(plain)
    given = inputs_of("mlp")
    for _ in range(2):
        module(*given)
        plain(*given)
    assert module.output_names() == plain.output_names()
    for (_, one), (_, other) in zip(module.state.parameters, plain.state.parameters, strict=True):
        assert one.data.dtype == np.float32 and one.requires_grad == other.requires_grad
        if one.requires_grad:
            scale = np.abs(other.grad).max()
            np.testing.assert_allclose(one.grad, other.grad, atol=4 * 2.0**-8 * scale)
    np.testing.assert_array_equal(module.eval()(*given)[0], plain.eval()(*given)[0])


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_changed_parameter_is_read_in_the_next_step(name: str, tmp_path: pathlib.Path):
    folder = write_artifacts(tmp_path / "a")
    module = load_module(folder, precision="bf16")
    before = module(*inputs_of("mlp"))[0]
    module.state.parameters[name].data = np.zeros_like(module.state.parameters[name].data)
    assert module(*inputs_of("mlp"))[0] != before


def test_checkpoints_go_on_in_another_precision(tmp_path: pathlib.Path):
    folder = write_artifacts(tmp_path / "a")
    module = load_module(folder, precision="bf16")
    optimizer = load_optimizer(folder, module)
    module(*inputs_of("mlp"))
    optimizer.step()
    CheckpointState.save_checkpoint(module.state, folder / "later", include_optimizer_state=True)
    again = load_module(folder, "later")
    load_optimizer(folder, again)
    assert float(again(*inputs_of("mlp"))[0]) < float(load_module(folder)(*inputs_of("mlp"))[0])


def test_running_statistics_skip_a_step_that_overflows(tmp_path: pathlib.Path):
    given = {"requires_grad": ["w1", "w2", "w3"], "frozen_params": ["m", "v"]}
    folder = write_artifacts(tmp_path, cnn(), **given, additional_output_names=None)
    module = load_module(folder, precision="fp16")
    optimizer = load_optimizer(folder, module)
    x, labels = inputs_of("cnn")
    found = []
    for factor in (1, 1e6):
        module(x * np.float32(factor), labels)
        optimizer.step()
        module.lazy_reset_grad()
        found.append({name: module.state.parameters[name].data.copy() for name in "mv"})
    for name in "mv":
        assert np.isfinite(found[0][name]).all() and (found[0][name] == found[1][name]).all()


def test_what_cannot_be_narrowed_is_refused(tmp_path: pathlib.Path):
    folder = write_artifacts(tmp_path / "wide")
    with pytest.raises(OptionError, match="precision is one of"):
        load_module(folder, precision="fp8")
    scaled = write_artifacts(tmp_path / "scaled", precision="fp16")
    with pytest.raises(OptionError, match="16 bits already"):
        load_module(scaled, precision="bf16")
