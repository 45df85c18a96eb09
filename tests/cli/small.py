"""A small model and data for it."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FEATURES, HIDDEN, CLASSES, SAMPLES = 8, 16, 3, 64


def classifier(batch: int | str = "N") -> onnx.ModelProto:
    """Two dense layers with Dropout between them, so that a step is random."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (FEATURES, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, CLASSES), "b2": (CLASSES,)}
    weights = [
        numpy_helper.from_array(rng.normal(0, 0.3, shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    weights.append(numpy_helper.from_array(np.float32(0.3), "ratio"))
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["sum"], "first"),
        helper.make_node("Relu", ["sum"], ["hidden"], "relu"),
        helper.make_node("Dropout", ["hidden", "ratio"], ["kept"], "drop"),
        helper.make_node("Gemm", ["kept", "w2", "b2"], ["logits"], "second"),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, FEATURES])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, CLASSES])],
        weights,
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def samples() -> dict[str, np.ndarray]:
    """Points whose class is the largest of three of their coordinates."""
    x = np.random.default_rng(1).normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    return {"x": x, "labels": x[:, :CLASSES].argmax(axis=1)}
