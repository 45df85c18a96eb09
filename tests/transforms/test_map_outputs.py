"""Classifiers whose scores leave the model as maps are trained by their scores."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxtrain import InferenceSession, LoraConfig, Trainer, api, artifacts


def classifier() -> onnx.ModelProto:
    """What skl2onnx writes unless it is told not to."""
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.normal(size=(4, 3)).astype(np.float32), "w")
    of = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, of))
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Softmax", ["h"], ["p"]),
            helper.make_node("ArgMax", ["p"], ["label"], axis=1, keepdims=0),
            helper.make_node(
                "ZipMap", ["p"], ["scores"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]
            ),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, ["N"]),
            helper.make_value_info("scores", maps),
        ],
        [weight],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def linear_classifier(features: int) -> onnx.ModelProto:
    """What OnnxMLTools wrote: ONNX's own operators are not imported.

    There are coefficients of four features.
    """
    of = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, of))
    labels = [0, 1, 2]
    linear = {
        "classlabels_ints": labels,
        "coefficients": np.random.default_rng(0).normal(size=12).tolist(),
        "intercepts": [0.1, 0.2, 0.3],
        "post_transform": "LOGISTIC",
    }
    graph = helper.make_graph(
        [
            helper.make_node(
                "LinearClassifier", ["x"], ["label", "p"], domain="ai.onnx.ml", **linear
            ),
            helper.make_node(
                "ZipMap", ["p"], ["scores"], domain="ai.onnx.ml", classlabels_int64s=labels
            ),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, features])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, [3]),
            helper.make_value_info("scores", maps),
        ],
    )
    imports = [helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=3)


@pytest.mark.parametrize("features", [4, 2])
def test_models_of_classical_operators_alone(features: int, tmp_path) -> None:
    """Coefficients of features that the input does not have are left out, as in onnxruntime."""
    given = linear_classifier(features)
    batch = {"x": np.random.default_rng(1).normal(size=(3, features)).astype(np.float32)}
    ours = InferenceSession(given.SerializeToString()).run(None, batch)
    theirs = onnxruntime.InferenceSession(given.SerializeToString()).run(None, batch)
    np.testing.assert_array_equal(ours[0], theirs[0])
    for one, other in zip(ours[1], theirs[1], strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    trainer = Trainer(given, loss=lambda o, _: o["scores"].square().mean(), lr=0.1, device="cpu")
    first, last = (float(trainer.step(batch)) for _ in range(2))
    assert last < first
    trainer.save(tmp_path / "m.onnx")
    saved = onnx.load(tmp_path / "m.onnx")
    assert [n.op_type for n in saved.graph.node] == ["LinearClassifier", "ZipMap"]
    assert [i.domain for i in saved.opset_import] == ["ai.onnx.ml"]
    before, after = (
        next(a.floats for a in m.graph.node[0].attribute if a.name == "coefficients")
        for m in (given, saved)
    )
    changed = np.not_equal(before, after)
    assert changed[: 3 * features].all() and not changed[3 * features :].any()


def test_probabilities_have_a_loss_of_their_own(tmp_path, recwarn) -> None:
    """A warning names it; votes of a model that gives raw scores are none."""
    given = linear_classifier(4)
    with pytest.warns(UserWarning, match="(?s)LinearClassifier.*of probabilities is 'likelihood'"):
        Trainer(given, loss="cross_entropy", device="cpu", outputs=["scores"])
    recwarn.clear()
    trainer = Trainer(given, loss="likelihood", lr=0.1, device="cpu", outputs=["scores"])
    batch = {
        "x": np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32),
        "labels": np.array([0, 1, 2]),
    }
    first, *_, last = (float(trainer.step(batch)) for _ in range(20))
    assert last < first / 2
    raw = linear_classifier(4)
    next(a for a in raw.graph.node[0].attribute if a.name == "post_transform").s = b"NONE"
    Trainer(raw, loss="cross_entropy", device="cpu", outputs=["scores"])
    assert not [w for w in recwarn if "probabilities" in str(w.message)]


def test_a_loss_takes_the_scores_under_the_name_of_the_map(tmp_path):
    seen = []

    def loss(outputs, batch):
        seen.append(outputs["scores"].shape)
        return -outputs["scores"][:, 0].log().mean()

    trainer = Trainer(classifier(), loss=loss, lr=0.1, device="cpu", seed=0)
    batch = {"x": np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)}
    first, last = (float(trainer.step(batch)) for _ in range(2))
    assert seen[0] == torch.Size([5, 3])
    assert last < first
    found = trainer.predict(batch)
    assert list(found) == ["label", "scores"]
    assert [sorted(one) for one in found["scores"]] == [[0, 1, 2]] * 5
    trainer.save(tmp_path / "m.onnx")
    saved = onnx.load(tmp_path / "m.onnx")
    assert [n.op_type for n in saved.graph.node] == ["MatMul", "Softmax", "ArgMax", "ZipMap"]


@pytest.mark.parametrize("kind", ["large", "for adapters"])
def test_files_that_are_written_anew_declare_maps(kind, tmp_path, monkeypatch):
    if kind == "large":
        monkeypatch.setattr("onnxtrain.formats.models.EXTERNAL_BYTES", 1)
    lora = None if kind == "large" else LoraConfig(rank=1)
    given = classifier()
    trainer = Trainer(
        given, loss=lambda outputs, batch: outputs["scores"].mean(), device="cpu", lora=lora
    )
    path = tmp_path / "m.onnx"
    if lora is None:
        trainer.save(path)
    else:
        trainer.save_adapter(tmp_path / "a.onnx_adapter", path)
    onnx.checker.check_model(str(path), full_check=True)
    assert onnx.load(path).graph.output[1].type == given.graph.output[1].type


def test_artifacts_give_maps_and_sequences(tmp_path):
    model = classifier()
    model.graph.node.append(helper.make_node("SequenceConstruct", ["h", "p"], ["both"]))
    model.graph.output.append(
        helper.make_tensor_sequence_value_info("both", TensorProto.FLOAT, ["N", 3])
    )
    artifacts.generate_artifacts(
        model,
        requires_grad=["w"],
        loss=artifacts.LossType.CrossEntropyLoss,
        artifact_directory=tmp_path,
        loss_input_names=["h"],
        additional_output_names=["scores", "both"],
    )
    state = api.CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    files = (tmp_path / f"{name}_model.onnx" for name in ("training", "eval"))
    module = api.Module(next(files), state, next(files), device="cpu")
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    _, maps, (h, p) = module(x, np.zeros(5, np.int64))
    module.export_model_for_inferencing(tmp_path / "m.onnx", ["scores", "both"])
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    told, (scores, shares) = session.run(None, {"x": x})
    assert [sorted(one) for one in maps] == [sorted(one) for one in told] == [[0, 1, 2]] * 5
    np.testing.assert_allclose(h, scores, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(p, shares, rtol=1e-5, atol=1e-6)


def test_an_output_may_be_listed_twice():
    model = classifier()
    del model.graph.output[:]
    score = helper.make_tensor_value_info("p", TensorProto.FLOAT, ["N", 3])
    model.graph.output.extend([score, score])
    trainer = Trainer(model, loss=lambda outputs, batch: outputs["p"].square().mean(), device="cpu")
    losses = [float(trainer.step({"x": np.ones((2, 4), np.float32)})) for _ in range(2)]
    assert losses[1] < losses[0]


@pytest.mark.parametrize("loss", ["mse", "huber"])
def test_losses_by_name_behind_classical_operators_alone(loss: str) -> None:
    """As CatBoost writes a regressor: no opset of ONNX itself is imported."""
    node = helper.make_node(
        "LinearRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        coefficients=[0.5, -0.5],
        intercepts=[0.1],
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 1])],
    )
    imports = [helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=3)
    trainer = Trainer(model, loss=loss, optimizer="sgd", lr=0.1, device="cpu")
    x = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    losses = [float(trainer.step({"x": x, "target": x[:, :1]})) for _ in range(9)]
    assert losses[-1] < losses[0] / 2
