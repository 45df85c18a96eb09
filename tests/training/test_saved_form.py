"""Files in training form come back in inference form: they run as ``predict`` runs the model."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from onnxtrain import LoraConfig, Trainer
from training.small import batch_of, model_of, normal

BATCH = batch_of()
WEIGHTS = {
    "w": normal(4, 3),
    "scale": np.ones(4, np.float32),
    "shift": normal(4, seed=1),
    "mean": normal(4, seed=2),
    "var": np.full(4, 3, np.float32),
    "rate": np.float32(0.5),
    "drops": np.array(True),
}
KINDS = pytest.mark.parametrize("kind", [lambda m: m, ir.from_proto], ids=["proto", "onnx-ir"])
NORMALISED = "n, m, v = BatchNormalization<training_mode=1>(x, scale, shift, mean, var)"


def in_training_form(
    text: str = "(float[N,4] x) => (float[N,3] y)",
    drop: str = "d, mask = Dropout(n, rate, drops)",
) -> onnx.ModelProto:
    model = model_of(f"{text} {{ {NORMALISED} {drop} y = MatMul(d, w) }}", WEIGHTS)
    model.graph.value_info.append(helper.make_tensor_value_info("v", 1, [4]))
    model.training_info.add()
    return model


def in_a_function() -> onnx.ModelProto:
    model = in_training_form()
    inputs = ["x", *(name for name in WEIGHTS if name not in ("w", "drops"))]
    flag = helper.make_node("Constant", [], ["drops"], value=model.graph.initializer.pop())
    body = [flag, *model.graph.node[:-1]]
    function = helper.make_function("own", "Both", inputs, ["d"], body, model.opset_import)
    del model.graph.node[:-1]
    model.graph.node.insert(0, helper.make_node("Both", inputs, ["d"], domain="own"))
    model.functions.append(function)
    model.opset_import.add(domain="own", version=1)
    model.graph.ClearField("value_info")
    return model


def saved(model, tmp_path, **options) -> tuple[Trainer, onnx.ModelProto]:
    """A trainer after two steps, and the file that it saved, which runs as it predicts."""
    given = {"loss": "cross_entropy", "device": "cpu", "seed": 0, "outputs": ["y"]}
    trainer = Trainer(model, **{**given, **options})
    feeds = {name: BATCH["x"] if name == "x" else np.array(False) for name in trainer.input_names}
    for _ in range(2):
        trainer.step({**BATCH, **feeds})
    path = tmp_path / "trained.onnx"
    trainer.save(path)
    onnx.checker.check_model(str(path), full_check=True)
    got = onnxruntime.InferenceSession(path).run(None, feeds)
    for one, wanted in zip(got, trainer.predict(feeds).values(), strict=True):
        np.testing.assert_allclose(one, wanted.numpy(), rtol=1e-4, atol=1e-5)
    return trainer, onnx.load(path)


def held(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_the_file_has_the_moved_statistics_and_nothing_of_training(tmp_path):
    model = in_training_form()
    before = model.SerializeToString()
    _, written = saved(model, tmp_path)
    assert model.SerializeToString() == before
    norm, drop, _ = written.graph.node
    assert not norm.attribute and list(norm.output) == ["n"]
    assert list(drop.input) == ["n", "rate"]
    assert not written.graph.value_info
    assert held(written).keys() == WEIGHTS.keys() - {"drops"}
    for name in ("mean", "var"):
        assert (held(written)[name] != WEIGHTS[name]).all()
    assert len(written.training_info) == 1


@pytest.mark.parametrize("large", [False, True])
@KINDS
def test_all_kinds_of_sources_and_sizes(kind, large, tmp_path, monkeypatch):
    if large:
        monkeypatch.setattr("onnxtrain.formats.models.EXTERNAL_BYTES", 1)
    _, written = saved(kind(in_training_form()), tmp_path)
    assert [len(node.input) for node in written.graph.node] == [5, 2, 2]
    assert "drops" not in held(written)


@KINDS
def test_nodes_in_functions(kind, tmp_path):
    _, written = saved(kind(in_a_function()), tmp_path)
    norm, drop = written.functions[0].node
    assert not norm.attribute and list(drop.input) == ["n", "rate"]


@KINDS
def test_nodes_in_bodies(kind, tmp_path):
    drop = """yes = Constant<value=bool {1}>()
        d = If(yes) <
            then_branch = first () => (float[N,4] f) { f = Dropout(n, rate, drops) },
            else_branch = other () => (float[N,4] g) { g = Dropout(n, rate, yes) }
        >"""
    _, written = saved(kind(in_training_form(drop=drop)), tmp_path)
    branches = [a.g for node in written.graph.node if node.op_type == "If" for a in node.attribute]
    assert [list(branch.node[0].input) for branch in branches] == [["n", "rate"]] * 2
    assert "drops" not in held(written)
    assert "Constant" in [node.op_type for node in written.graph.node]


@KINDS
def test_statistics_that_the_model_returns_are_the_saved_ones(kind, tmp_path):
    text = "(float[N,4] x) => (float[N,3] y, float[4] m)"
    _, written = saved(kind(in_training_form(text)), tmp_path)
    (mean,) = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(["m"], {"x": BATCH["x"]})
    np.testing.assert_array_equal(mean, held(written)["mean"])


@KINDS
def test_a_flag_that_is_fed_stays_an_input(kind, tmp_path):
    text = "(float[N,4] x, bool on) => (float[N,3] y)"
    model = in_training_form(text, "d = Dropout(n, rate, on)")
    _, written = saved(kind(model), tmp_path)
    assert [value.name for value in written.graph.input] == ["x", "on"]
    assert list(written.graph.node[1].input) == ["n", "rate", "on"]


def test_a_flag_in_a_constant_node_and_no_rate(tmp_path):
    drop = "on = Constant<value=bool {1}>() d = Dropout(n, , on)"
    _, written = saved(in_training_form(drop=drop), tmp_path)
    assert [node.op_type for node in written.graph.node] == [
        "BatchNormalization",
        "Dropout",
        "MatMul",
    ]
    assert list(written.graph.node[1].input) == ["n"]


def test_merged_adapters(tmp_path):
    _, written = saved(in_training_form(), tmp_path, lora=LoraConfig(rank=1))
    assert list(written.graph.node[1].input) == ["n", "rate"]
