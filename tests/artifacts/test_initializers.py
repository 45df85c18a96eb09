"""Artifacts of models whose weights are no initializers, or whose nodes are in any order.

Each model computes what ``PLAIN`` does, so its losses are those of ``PLAIN``.
"""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxtrain import artifacts
from training.small import load_module, load_optimizer, model_of, normal

W, B = normal(4, 3, seed=1), normal(3, seed=2)
W[0] = 0
TEXT = "(float[N,4] x) => (float[N,3] y) { h = MatMul(x, w)  y = Add(h, b) }"
PLAIN = model_of(TEXT, {"w": W, "b": B})


def constant(name: str, array: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


def without_w() -> onnx.ModelProto:
    model = model_of(TEXT, {"w": W, "b": B})
    del model.graph.initializer[0]
    assert model.graph.initializer[0].name == "b"
    return model


def nodes() -> onnx.ModelProto:
    model = without_w()
    model.graph.node.insert(0, constant("w", W))
    return model


def mixed_up() -> onnx.ModelProto:
    model = model_of(TEXT, {"w": W, "b": B})
    model.graph.node.append(model.graph.node.pop(0))
    return model


def sparse() -> onnx.ModelProto:
    model = without_w()
    places = np.flatnonzero(W)
    values = numpy_helper.from_array(W.ravel()[places], "w")
    kept = helper.make_sparse_tensor(values, numpy_helper.from_array(places), W.shape)
    model.graph.sparse_initializer.append(kept)
    return model


def in_function() -> onnx.ModelProto:
    model = model_of("(float[N,4] x) => (float[N,3] y) { h = my.F(x)  y = Add(h, b) }", {"b": B},
                     imports=', "my": 1')  # fmt: skip
    body = [constant("w", W), helper.make_node("MatMul", ["u", "w"], ["v"])]
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("my", "F", ["u"], ["v"], body, opsets))
    return model


def in_branch() -> onnx.ModelProto:
    model = without_w()
    out = helper.make_tensor_value_info("v", onnx.TensorProto.FLOAT, None)
    product = helper.make_node("MatMul", ["x", "w"], ["v"])
    branch = helper.make_graph([product], "yes", [], [out], [numpy_helper.from_array(W, "w")])
    other = helper.make_graph([constant("v", W)], "no", [], [out])
    choice = helper.make_node("If", ["yes"], ["h"], then_branch=branch, else_branch=other)
    del model.graph.node[0]
    model.graph.node.insert(0, choice)
    model.graph.node.insert(0, constant("yes", np.array(True)))
    return model


def losses(model: onnx.ModelProto, folder: pathlib.Path) -> list[float]:
    artifacts.generate_artifacts(
        model,
        requires_grad=["w", "b"],
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )
    module = load_module(folder)
    optimizer = load_optimizer(folder, module)
    found = []
    for _ in range(3):
        found.append(float(module(normal(5, 4, seed=3), normal(5, 3, seed=4))))
        optimizer.step()
        module.lazy_reset_grad()
    return found


@pytest.mark.parametrize("make", [nodes, mixed_up, sparse, in_function, in_branch])
def test_weights_are_found_wherever_they_are(make, tmp_path, tmp_path_factory):
    plain = losses(PLAIN, tmp_path_factory.mktemp("plain"))
    assert plain[0] > plain[1] > plain[2]
    np.testing.assert_allclose(losses(make(), tmp_path), plain, rtol=1e-6)


def test_types_that_onnx_does_not_find_contradict_no_loss(tmp_path):
    text = (
        "(float[N,2,2] x) => (float[N,3] y) {"
        " f = Reshape<shape = [0, 4]>(x)  y = Gemm<broadcast = 1>(f, w, b) }"
    )
    model = model_of(text, {"w": W, "b": B}, opset=4, ir_version=4)
    artifacts.generate_artifacts(
        model,
        requires_grad=["w", "b"],
        loss=artifacts.LossType.MSELoss,
        artifact_directory=tmp_path,
    )
    x, target = normal(5, 2, 2, seed=3), normal(5, 3, seed=4)
    found = float(load_module(tmp_path)(x, target))
    assert found == pytest.approx(np.square(x.reshape(5, 4) @ W + B - target).mean(), rel=1e-5)


def test_words_among_the_outputs_have_no_sign(tmp_path):
    words = numpy_helper.from_array(np.array(["no", "yes"], dtype=object), "words")
    weight = numpy_helper.from_array(np.ones((2, 2), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Exp", ["h"], ["e"]),
        helper.make_node("Greater", ["h", "x"], ["larger"]),
        helper.make_node("Where", ["larger", "h", "e"], ["y"]),
        helper.make_node("ArgMax", ["y"], ["best"], axis=1, keepdims=0),
        helper.make_node("Gather", ["words", "best"], ["names"]),
    ]
    x, y = (helper.make_tensor_value_info(name, 1, ["n", 2]) for name in ("x", "y"))
    names = helper.make_tensor_value_info("names", onnx.TensorProto.STRING, ["n"])
    graph = helper.make_graph(nodes, "g", [x], [y, names], [weight, words])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    artifacts.generate_artifacts(
        model,
        requires_grad=["w"],
        loss=artifacts.LossType.MSELoss,
        loss_input_names=["y"],
        additional_output_names=["names"],
        artifact_directory=tmp_path,
    )
    training = onnx.load(tmp_path / "training_model.onnx")
    assert "names" in {value.name for value in training.graph.output}


def test_artifacts_of_a_link_to_a_model_whose_data_is_a_link_too(tmp_path):
    links, blobs = tmp_path / "links", tmp_path / "blobs"
    links.mkdir(), blobs.mkdir()
    outside = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(model_of(TEXT, {"w": W, "b": B}), blobs / "model", **outside)
    (blobs / "w.bin").rename(blobs / "data")
    (links / "model.onnx").symlink_to("../blobs/model")
    (links / "w.bin").symlink_to("../blobs/data")
    loss, folder = artifacts.LossType.MSELoss, tmp_path
    model = links / "model.onnx"
    artifacts.generate_artifacts(model, ["w"], loss=loss, artifact_directory=folder)
    held = onnx.load(folder / "training_model.onnx").graph.initializer
    assert any(np.array_equal(numpy_helper.to_array(tensor), B) for tensor in held)
