"""Write a small ONNX classifier, ``model.onnx``, and data for it, ``train.csv``."""

import csv

import numpy as np
import onnx
from onnx import helper, numpy_helper

FEATURES, HIDDEN, CLASSES = 4, 16, ["blue", "green", "red"]
rng = np.random.default_rng(0)


def dense(name, source, target, inputs, outputs):
    """A Gemm node and its weights."""
    weight = rng.normal(0, (2 / inputs) ** 0.5, (inputs, outputs)).astype(np.float32)
    weights.append(numpy_helper.from_array(weight, f"{name}.weight"))
    weights.append(numpy_helper.from_array(np.zeros(outputs, np.float32), f"{name}.bias"))
    return helper.make_node("Gemm", [source, f"{name}.weight", f"{name}.bias"], [target], name)


weights = []
nodes = [
    dense("first", "x", "hidden", FEATURES, HIDDEN),
    helper.make_node("Relu", ["hidden"], ["active"], "relu"),
    dense("last", "active", "scores", HIDDEN, len(CLASSES)),
]
graph = helper.make_graph(
    nodes,
    "classifier",
    [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", FEATURES])],
    [helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["batch", len(CLASSES)])],
    weights,
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(model, full_check=True)
onnx.save(model, "model.onnx")

# Three clouds of points, which overlap a little.
labels = rng.integers(0, len(CLASSES), 400)
centres = rng.normal(0, 2, (len(CLASSES), FEATURES))
points = centres[labels] + rng.normal(0, 1.5, (len(labels), FEATURES))
with open("train.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["length", "width", "height", "weight", "label"])
    for point, label in zip(points, labels, strict=True):
        rows.writerow([*(f"{number:.3f}" for number in point), CLASSES[label]])
