"""Operators on whole numbers, trained between quantisers; the file keeps them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxtrain import Trainer
from onnxtrain.graph.loading.load import load_model
from onnxtrain.training.build import working_copy

RNG = np.random.default_rng(0)
S, Z = np.float32(0.04), np.uint8(128)
WEIGHTS = {
    "s": S,
    "z": Z,
    "conv": RNG.integers(-90, 90, (3, 2, 3, 3)).astype(np.int8),
    "conv_s": np.array([0.01, 0.02, 0.015], np.float32),
    "fine_s": np.array([0.002, 0.001, 0.003], np.float32),
    "conv_z": np.zeros(3, np.int8),
    "conv_b": np.array([300, -200, 100], np.int32),
    "dense": RNG.integers(-90, 90, (12, 4)).astype(np.int8),
    "small": RNG.integers(-90, 90, (9, 4)).astype(np.int8),
    "top": RNG.integers(-90, 90, (4, 4)).astype(np.int8),
    "tall": RNG.integers(-90, 90, (4, 50)).astype(np.int8),
    "tall_s": np.array([0.002, 0.004, 0.003, 0.001], np.float32),
    "tall_z": np.array([3, 0, -2, 0], np.int8),
    "tall_b": np.array([300, -200, 100, 0], np.int32),
    "bias": np.array([0.3, -0.2, 0.1, 0.4], np.float32),
    "dense_s": np.float32(0.01),
    "dense_z": np.int8(0),
    "flat": np.array([1, -1], np.int64),
    "pads": np.array([0, 0, 0, 0, 0, 0, 1, 1], np.int64),
    "twice": np.array([1, 1, 1, 2], np.int64),
}
Q = ["s", "z"]
LINEAR = [
    ("", "QuantizeLinear", ["x", *Q], ["xq"]),
    ("", "QLinearConv", ["xq", *Q, "conv", "conv_s", "conv_z", *Q, "conv_b"], ["c"]),
    ("", "MaxPool", ["c"], ["p"]),
    ("com.microsoft", "QLinearLeakyRelu", ["p", *Q, *Q], ["r"]),
    ("com.microsoft", "QLinearAdd", ["r", *Q, "p", *Q, *Q], ["a"]),
    ("", "Reshape", ["a", "flat"], ["f"]),
    ("", "QLinearMatMul", ["f", *Q, "dense", "dense_s", "dense_z", *Q], ["m"]),
    ("", "DequantizeLinear", ["m", *Q], ["y"]),
]
POOLED = ("com.microsoft", "QLinearAveragePool", ["c", *Q, *Q], ["p"])
OLD = [POOLED if row[1] == "MaxPool" else row for row in LINEAR]
OLD[-2] = ("", "QLinearMatMul", ["f", *Q, "small", "dense_s", "dense_z", *Q], ["m"])
DYNAMIC = [
    ("", "Reshape", ["x", "flat"], ["f"]),
    ("", "DynamicQuantizeLinear", ["f"], ["fq", "fs", "fz"]),
    ("", "MatMulInteger", ["fq", "wide", "fz", "dense_z"], ["i"]),
    ("", "Add", ["i", "shift"], ["b"]),
    ("", "Cast", ["b"], ["r"]),
    ("", "Mul", ["fs", "dense_s"], ["t"]),
    ("", "Mul", ["r", "t"], ["y"]),
]
FUSED = [
    ("", "Reshape", ["x", "flat"], ["f"]),
    ("com.microsoft", "DynamicQuantizeMatMul", ["f", "wide", "dense_s", "dense_z", "bias"], ["h"]),
    ("", "DynamicQuantizeLinear", ["h"], ["hq", "hs", "hz"]),
    ("com.microsoft", "MatMulIntegerToFloat", ["hq", "top", "hs", "dense_s", "hz"], ["y"]),
]
GEMM = [
    ("", "Reshape", ["x", "flat"], ["f"]),
    ("", "QuantizeLinear", ["f", *Q], ["fq"]),
    ("com.microsoft", "QGemm", ["fq", *Q, "tall", "tall_s", "tall_z", "tall_b", *Q], ["m"]),
    ("", "DequantizeLinear", ["m", *Q], ["y"]),
]
MOVED = [
    ("", "QuantizeLinear", ["x", *Q], ["xq"]),
    ("", "QLinearConv", ["xq", *Q, "conv", "fine_s", "conv_z", *Q, "conv_b"], ["c"]),
    ("", "MaxPool", ["c"], ["p"]),
    ("", "Pad", ["p", "pads", "z"], ["d"]),
    ("", "Concat", ["c", "d"], ["k"]),
    ("", "Tile", ["k", "twice"], ["t"]),
    ("", "DequantizeLinear", ["t", *Q], ["y"]),
]
"""Parts of other sizes are put together as whole numbers, as TensorFlow Lite does it."""
OPTIONS = {
    "Cast": {"to": 1},
    "Concat": {"axis": 1},
    "MaxPool": {"kernel_shape": [2, 2]},
    "QGemm": {"transB": 1, "alpha": 0.5},
    "QLinearAveragePool": {"kernel_shape": [3, 1]},
    "QLinearLeakyRelu": {"alpha": 0.5},
}


def _model(rows: list[tuple[str, str, list[str], list[str]]], opset: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node(op, given, made, domain=domain, **OPTIONS.get(op, {}))
        for domain, op, given, made in rows
    ]
    wide = RNG.integers(-90, 90, (50, 4)).astype(np.int8)
    tensors = {**WEIGHTS, "wide": wide, "shift": np.array([40, -70, 10, 0], np.int32)}
    read = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "whole",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 5, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, name) for name, a in tensors.items() if name in read],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, ir_version=7, opset_imports=imports)


X = {"x": RNG.normal(size=(1, 2, 5, 5)).astype(np.float32)}


def _squares(outputs: dict[str, torch.Tensor], batch: object) -> torch.Tensor:
    return outputs["y"].square().mean()


@pytest.mark.parametrize(
    ("rows", "opset", "trained"),
    [
        (LINEAR, 13, {"conv", "conv_b", "dense"}),
        (OLD, 10, {"conv", "conv_b", "small"}),
        (DYNAMIC, 11, {"wide"}),
        (FUSED, 11, {"wide", "top", "bias"}),
        (GEMM, 13, {"tall", "tall_b"}),
        (MOVED, 13, {"conv", "conv_b"}),
    ],
    ids=["linear", "old", "dynamic", "fused", "gemm", "moved"],
)
def test_whole_numbers_are_trained_and_written_back(rows, opset, trained, tmp_path):
    model = _model(rows, opset)
    trainer = Trainer(model, loss=_squares, device="cpu", lr=0.01, deterministic=True)
    assert set(trainer.parameters) == trained
    before = onnxruntime.InferenceSession(model.SerializeToString()).run(None, X)[0]
    np.testing.assert_allclose(trainer.predict(X)["y"].numpy(), before, rtol=1e-5, atol=1e-5)
    losses = [float(trainer.step(X)) for _ in range(6)]
    assert losses[-1] < 0.8 * losses[0]
    trainer.save(tmp_path / "trained.onnx")
    saved = onnx.load(tmp_path / "trained.onnx")
    session = onnxruntime.InferenceSession(saved.SerializeToString())
    found, want = session.run(None, X)[0], trainer.predict(X)["y"].numpy()
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    assert saved.graph.node == model.graph.node
    for old, new in zip(model.graph.initializer, saved.graph.initializer, strict=True):
        assert (old.raw_data != new.raw_data) == (old.name in trained)


def test_numbers_are_moved_as_real_ones():
    graph = working_copy(load_model(_model(LINEAR, 13))).graph
    types = {v.name: v.dtype for node in graph for v in node.outputs}
    assert all(types[node.inputs[0].name] == 1 for node in graph if node.op_type == "Reshape")
    assert not any(node.op_type.startswith("QLinear") for node in graph)


def test_what_a_pad_fills_in_is_a_whole_number_of_steps():
    rows = [(d, op, g[:2] if op == "Pad" else g, made) for d, op, g, made in MOVED]
    model = _model(rows, 13)
    trainer = Trainer(model, loss=_squares, device="cpu")
    assert set(trainer.parameters) == {"conv", "conv_b"}
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, X)[0]
    np.testing.assert_allclose(trainer.predict(X)["y"].numpy(), want, rtol=1e-5, atol=1e-5)
    assert float(want[0, 3, 2, 2]) == pytest.approx(-128 * S)


@pytest.mark.parametrize(("axis", "kept"), [(-1, 0), (3, 0), (1, 1), (2, 1)])
def test_a_softmax_is_rewritten_along_the_last_axis_only(axis, kept):
    rows = [
        ("", "QuantizeLinear", ["x", *Q], ["xq"]),
        ("com.microsoft", "QLinearSoftmax", ["xq", *Q, *Q], ["r"]),
        ("", "QLinearConv", ["r", *Q, "conv", "conv_s", "conv_z", *Q, "conv_b"], ["c"]),
        ("", "DequantizeLinear", ["c", *Q], ["y"]),
    ]
    model = _model(rows, 13)
    model.graph.node[1].attribute.append(helper.make_attribute("axis", axis))
    model.graph.node[1].attribute.append(helper.make_attribute("opset", 13))
    graph = working_copy(load_model(model)).graph
    assert sum(node.op_type == "QLinearSoftmax" for node in graph) == kept


def test_a_scale_that_is_computed_leaves_an_operator_as_it_is():
    rows = [("", "Abs", ["k"], ["s"]), *LINEAR]
    model = _model(rows, 13)
    model.graph.input.append(helper.make_tensor_value_info("k", TensorProto.FLOAT, []))
    kept = [t for t in model.graph.initializer if t.name != "s"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    graph = working_copy(load_model(model)).graph
    assert [n.op_type for n in graph if n.op_type.startswith("QLinear")] == [
        "QLinearConv",
        "QLinearMatMul",
    ]
