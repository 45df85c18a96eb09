"""Weights in attributes of nodes: trained as tensors, written back as attributes."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper

from onnxtrain import Trainer
from onnxtrain.graph.loading.load import load_model, load_source
from onnxtrain.transforms.patch import patched
from onnxtrain.transforms.weights.attribute_weights import attribute_weights, lift_attributes
from onnxtrain.transforms.write_back import weight_names, write_back

X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75], [-0.3, 0.8, 0.1]], np.float32)
TREE = {
    "nodes_treeids": [0, 0, 0, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 0, 1, 2],
    "nodes_featureids": [0, 0, 0, 1, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "LEAF"],
    "nodes_values": [0.6, 0.0, 0.0, 0.5, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0, 2, 0, 0],
}


def _votes(what: str) -> dict[str, object]:
    return {
        f"{what}_treeids": [0, 0, 1, 1],
        f"{what}_nodeids": [1, 2, 1, 2],
        f"{what}_ids": [0, 0, 1, 1],
        f"{what}_weights": [1.5, -2.0, 0.25, 4.0],
    }


VECTORS = [0.1, 0.2, 0.3, -0.4, 0.5, 0.6, -0.7, 0.8, 0.9]
LABELS = {"classlabels_strings": ["no", "yes"]}
REGRESSORS = {
    "LinearRegressor": {"coefficients": [0.5, -0.25, 1.5, 2.0, -1.0, 0.75], "targets": 2,
                        "intercepts": [0.1, -0.2]},
    "SVMRegressor": {"coefficients": [0.5, -1.0, 0.75], "support_vectors": VECTORS, "rho": [0.25],
                     "n_supports": 3, "kernel_type": "RBF", "kernel_params": [0.5, 0.0, 0.0]},
    "TreeEnsembleRegressor": {**TREE, **_votes("target"), "n_targets": 2,
                              "base_values": [0.5, -0.5]},
}  # fmt: skip
CLASSIFIERS = {
    "LinearClassifier": {"coefficients": [0.5, -0.25, 1.5], "intercepts": [0.1], **LABELS,
                         "post_transform": "LOGISTIC"},
    "SVMClassifier": {"coefficients": [0.5, -1.0, 0.75], "support_vectors": VECTORS, **LABELS,
                      "vectors_per_class": [1, 2], "rho": [0.25], "kernel_type": "LINEAR",
                      "kernel_params": [0.5, 0.0, 0.0]},
    "TreeEnsembleClassifier": {**TREE, **_votes("class"), **LABELS, "post_transform": "SOFTMAX"},
}  # fmt: skip
ALL = {**REGRESSORS, **CLASSIFIERS}


def _model(op: str, attributes: dict[str, object]) -> onnx.ModelProto:
    """One node, between nodes of no weights; a classifier also names its scores."""
    name = "machine" if op.startswith("SVM") else ""
    ends, scored = ["y"], "Classifier" in op
    if scored:
        ends = ["label", "y"]
    learned = helper.make_node(op, ["x"], ends, name, domain="ai.onnx.ml", **attributes)
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    if scored:
        outputs.insert(0, helper.make_tensor_value_info("label", onnx.TensorProto.STRING, None))
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph([learned], "learned", [x], outputs)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, ir_version=8, opset_imports=imports)


def _run(model: onnx.ModelProto) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": X})


def _squares(outputs: dict[str, torch.Tensor], batch: object) -> torch.Tensor:
    return outputs["y"].square().mean()


@pytest.mark.parametrize("op", ALL)
def test_gradients_are_those_by_differences_in_onnxruntime(op):
    trainer = Trainer(_model(op, ALL[op]), loss=_squares, device="cpu")
    for name, grad in trainer.gradients({"x": X}).items():
        key = name.rpartition(".")[2]
        found = []
        for index in range(grad.numel()):
            losses = []
            for step in (0.01, -0.01):
                numbers = list(ALL[op][key])
                numbers[index] += step
                model = _model(op, {**ALL[op], key: numbers})
                losses.append(float(np.square(_run(model)[-1].astype(np.float64)).mean()))
            found.append((losses[0] - losses[1]) / 0.02)
        # the loss is a square of what grows linearly: differences only have roundings of float32
        np.testing.assert_allclose(grad.numpy(), found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ALL)
def test_a_trained_file_differs_in_its_numbers_alone(op, tmp_path):
    model = _model(op, ALL[op])
    trainer = Trainer(model, loss=_squares, device="cpu", lr=0.05)
    losses = [float(trainer.step({"x": X})) for _ in range(20)]
    assert losses[-1] < losses[0]
    trainer.save(tmp_path / "trained.onnx")
    saved = onnx.load(tmp_path / "trained.onnx")
    want = trainer.predict({"x": X})
    for found, name in zip(_run(saved), want, strict=True):
        if name == "y":
            np.testing.assert_allclose(found, want[name].numpy(), rtol=1e-5, atol=1e-6)
        elif not op.startswith("Tree"):  # of two classes onnxruntime looks at the second one alone
            assert list(found) == list(want[name])
    keys = {name.rpartition(".")[2] for name in trainer.parameters}
    pairs = zip(model.graph.node[0].attribute, saved.graph.node[0].attribute, strict=True)
    for before, after in pairs:
        assert (before == after) == (before.name not in keys)
        after.CopyFrom(before)
    assert saved == model


def test_names_are_those_of_the_node_or_of_what_it_computes():
    names = weight_names(load_model(_model("SVMRegressor", REGRESSORS["SVMRegressor"])))
    assert names == {"machine.coefficients", "machine.rho"}
    names = weight_names(load_model(_model("LinearRegressor", REGRESSORS["LinearRegressor"])))
    assert names == {"y.coefficients", "y.intercepts"}


def test_a_sign_has_no_weights():
    options = {**REGRESSORS["SVMRegressor"], "one_class": 1}
    assert attribute_weights(load_model(_model("SVMRegressor", options))) == []


def test_both_ways_of_writing_give_the_same():
    source = load_source(_model("LinearRegressor", REGRESSORS["LinearRegressor"]))
    values = {"y.intercepts": np.array([3.0, 4.0], np.float32)}
    other = load_model(patched(source.proto, values))
    assert write_back(source.model, values) is source.model
    for model in (source.model, other):
        assert list(model.graph.node(0).attributes["intercepts"].as_floats()) == [3.0, 4.0]


def test_double_weights_stay_double_and_their_result_float():
    weights = helper.make_tensor("w", onnx.TensorProto.DOUBLE, [4], [1.5, -2.0, 0.25, 4.0])
    options = {**REGRESSORS["TreeEnsembleRegressor"], "target_weights_as_tensor": weights}
    del options["target_weights"], options["base_values"]
    model = load_model(_model("TreeEnsembleRegressor", options))
    lift_attributes(model)
    assert model.graph.initializers["y.target_weights_as_tensor"].dtype == onnx.TensorProto.DOUBLE
    trainer = Trainer(_model("TreeEnsembleRegressor", options), loss=_squares, device="cpu")
    assert trainer.predict({"x": X})["y"].dtype == torch.float32
    trainer.step({"x": X})


def test_weights_in_a_branch_are_trained(tmp_path):
    inner = _model("LinearRegressor", REGRESSORS["LinearRegressor"]).graph
    del inner.input[:]
    other = helper.make_graph(
        [helper.make_node("Identity", ["first"], ["y"])], "other", [], [inner.output[0]]
    )
    choice = helper.make_node("If", ["yes"], ["out"], then_branch=inner, else_branch=other)
    part = helper.make_node("Slice", ["x"], ["first"], starts=[0], ends=[2], axes=[1])
    graph = helper.make_graph(
        [part, choice],
        "choice",
        [
            helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3]),
            helper.make_tensor_value_info("yes", onnx.TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, None)],
    )
    imports = [helper.make_opsetid("", 9), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, ir_version=8, opset_imports=imports)
    trainer = Trainer(model, loss=lambda y, _: y["out"].square().mean(), device="cpu")
    batch = {"x": X, "yes": np.array(True)}
    trainer.step(batch)
    assert set(trainer.parameters) == {"y.coefficients", "y.intercepts"}
    trainer.save(tmp_path / "trained.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    want = trainer.predict(batch)["out"].numpy()
    np.testing.assert_allclose(session.run(None, batch)[0], want, rtol=1e-5)
