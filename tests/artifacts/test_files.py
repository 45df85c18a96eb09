"""Artifacts of models as files hold them: sparse tensors, missing imports, statistics."""

from __future__ import annotations

import pathlib
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from training.small import (
    batch_of,
    load_module,
    load_optimizer,
    mlp,
    model_of,
    normal,
    write_artifacts,
)

BATCH = batch_of()
STATISTICS = {"mean": normal(4, seed=1), "var": np.ones(4, np.float32)}


def sparse(kind: str) -> onnx.ModelProto:
    """The small network with its first weight stored sparsely."""
    model = mlp()
    weight = model.graph.initializer[0]
    full = numpy_helper.to_array(weight)
    places = np.flatnonzero(full > 0)
    values = numpy_helper.from_array(full.ravel()[places], weight.name)
    stored = helper.make_sparse_tensor(values, numpy_helper.from_array(places, "at"), full.shape)
    name = weight.name
    del model.graph.initializer[0]
    if kind == "initializer":
        model.graph.sparse_initializer.append(stored)
    else:
        node = helper.make_node("Constant", [], [name], sparse_value=stored)
        model.graph.node.insert(0, node)
    return model


def exported(folder: pathlib.Path) -> onnx.ModelProto:
    """The model for inference after a step, which gives in onnxruntime what is evaluated here."""
    module = load_module(folder, device="cpu")
    optimizer = load_optimizer(folder, module)
    module.train()
    module(BATCH["x"], BATCH["labels"])
    optimizer.step()
    _, wanted = module.eval()(BATCH["x"], BATCH["labels"])
    path = folder / "inference.onnx"
    module.export_model_for_inferencing(path, ["y"])
    onnx.checker.check_model(str(path), full_check=True)
    (got,) = onnxruntime.InferenceSession(path).run(["y"], {"x": BATCH["x"]})
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    return onnx.load(path)


@pytest.mark.parametrize(
    ("kind", "trained"),
    [("initializer", "fc1.weight"), ("initializer", "fc2.weight"), ("Constant", "fc2.weight")],
)
def test_sparse_tensors_become_dense(kind, trained, tmp_path):
    model = sparse(kind)
    before = model.SerializeToString()
    write_artifacts(tmp_path, model, requires_grad=[trained], frozen_params=[])
    assert model.SerializeToString() == before
    assert not exported(tmp_path).graph.sparse_initializer


def test_com_microsoft_need_not_be_imported(tmp_path):
    text = "(float[N,4] x) => (float[N,3] y) { h = MatMul(x, w) y = com.microsoft.Gelu(h) }"
    model = model_of(text, {"w": normal(4, 3)}, imports=', "com.microsoft": 1')
    del model.opset_import[1]
    before = model.SerializeToString()
    write_artifacts(tmp_path, model, requires_grad=["w"], frozen_params=[])
    assert model.SerializeToString() == before
    assert [opset.domain for opset in exported(tmp_path).opset_import] == ["", "com.microsoft"]


def test_a_loss_of_com_microsoft_leaves_no_import_behind(tmp_path):
    write_artifacts(tmp_path, mlp(opset=9))
    evaluation = onnx.load(tmp_path / "eval_model.onnx")
    assert "com.microsoft" in [opset.domain for opset in evaluation.opset_import]
    assert [opset.domain for opset in exported(tmp_path).opset_import] == [""]


@pytest.mark.parametrize("named", [False, True])
def test_steps_move_statistics_that_are_named(named, tmp_path):
    model = model_of(
        """(float[N,4] x) => (float[N,3] y) {
            n = BatchNormalization(x, scale, shift, mean, var)
            y = MatMul(n, w)
        }""",
        {"w": normal(4, 3), "scale": np.ones(4, "f"), "shift": np.zeros(4, "f"), **STATISTICS},
    )
    frozen = list(STATISTICS) if named else []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        write_artifacts(tmp_path, model, requires_grad=["w", "scale"], frozen_params=frozen)
    assert ["statistics 'mean', 'var', with" in str(one.message) for one in told] == [True] * (
        not named
    )
    held = {t.name: numpy_helper.to_array(t) for t in exported(tmp_path).graph.initializer}
    for name, array in STATISTICS.items():
        assert (held[name] != array).all() == named


SHARED = """(float[N,4] x) => (float[N,4] y) {
    h = MatMul(x, w)  n = BatchNormalization(h, scale, shift, mean, var)
    r = Relu(n)  y = BatchNormalization(r, more, less, mean, var)
}"""


@pytest.mark.parametrize("named", [False, True])
def test_statistics_of_several_layers_are_called_as_in_the_file(named, tmp_path):
    arrays = {"w": normal(4, 4), "scale": normal(4, seed=1), "more": normal(4, seed=2)}
    arrays |= {"shift": normal(4, seed=3), "less": normal(4, seed=4), **STATISTICS}
    frozen = list(STATISTICS) if named else []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = model_of(SHARED, arrays)
        write_artifacts(tmp_path, model, requires_grad=["w", "scale"], frozen_params=frozen)
    assert ["statistics 'mean', 'var', with" in str(one.message) for one in told] == [True] * (
        not named
    )
    training = onnx.load(tmp_path / "training_model.onnx")
    fixed = {tensor.name for tensor in training.graph.initializer}
    norms = [node for node in training.graph.node if node.op_type == "BatchNormInternal"]
    names = [name for node in norms for name in node.input[3:5]]
    assert len(set(names)) == 4
    assert fixed.isdisjoint(names) == named


@pytest.mark.parametrize("frozen", [[], ["ones"]])
def test_a_statistic_that_was_stored_with_a_weight_has_its_own_name(frozen, tmp_path):
    text = """(float[N,4] x) => (float[N,4] y) {
        h = MatMul(x, w)  y = BatchNormalization(h, ones, shift, mean, ones)
    }"""
    arrays = {"w": normal(4, 4), "shift": normal(4), "mean": normal(4), "ones": np.ones(4, "f")}
    with pytest.warns(UserWarning, match=r"statistics 'mean', '.*running_var', with"):
        write_artifacts(tmp_path, model_of(text, arrays), requires_grad=["w"], frozen_params=frozen)


def test_a_statistic_is_not_trained_with_the_weight_that_it_was_stored_with(tmp_path):
    text = """(float[N,4] x) => (float[N,4] y) {
        h = MatMul(x, w)  y = BatchNormalization(h, ones, shift, mean, ones)
    }"""
    arrays = {"w": normal(4, 4), "shift": normal(4), "mean": normal(4), "ones": np.ones(4, "f")}
    with pytest.warns(UserWarning, match=r"statistics 'mean', '.*running_var', with"):
        write_artifacts(tmp_path, model_of(text, arrays), requires_grad=["w", "ones"])
    held = {t.name for t in onnx.load(tmp_path / "training_model.onnx").graph.initializer}
    assert any(name.endswith("running_var") for name in held) and "ones" not in held
