"""A small convolutional network as an ONNX model, with untrained weights."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES = 10
SIDE = 8
CHANNELS = (16, 32)
HIDDEN = 64
OPSET = 17


def digits_cnn(seed: int = 0) -> onnx.ModelProto:
    """Images [N, 1, 8, 8] to logits [N, 10]: two convolutions, two dense layers."""
    weights = _Weights(seed)
    first, second = CHANNELS
    pooled = second * (SIDE // 2) ** 2
    nodes = [
        *_convolution("conv1", "image", weights, 1, first),
        *_convolution("conv2", "conv1.out", weights, first, second),
        helper.make_node(
            "MaxPool", ["conv2.out"], ["pool"], "pool", kernel_shape=[2, 2], strides=[2, 2]
        ),
        helper.make_node("Dropout", ["pool", weights.scalar("ratio", 0.25)], ["drop"], "drop"),
        helper.make_node("Flatten", ["drop"], ["flat"], "flatten"),
        _dense("fc1", "flat", "fc1.sum", weights, pooled, HIDDEN),
        helper.make_node("Relu", ["fc1.sum"], ["fc1.out"], "fc1.relu"),
        _dense("fc2", "fc1.out", "logits", weights, HIDDEN, CLASSES),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, SIDE, SIDE])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", CLASSES])
    graph = helper.make_graph(nodes, "digits_cnn", [image], [logits], weights.tensors)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="onnxtrain.demo"
    )
    model.ir_version = 8
    onnx.checker.check_model(model, full_check=True)
    return model


class _Weights:
    """Initializers, drawn one after the other."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.tensors: list[onnx.TensorProto] = []

    def add(self, name: str, array: np.ndarray) -> str:  # type: ignore[type-arg]
        self.tensors.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def scalar(self, name: str, value: float) -> str:
        return self.add(name, np.asarray(value))

    def he_normal(self, name: str, shape: tuple[int, ...]) -> str:
        """Normal numbers with variance 2 / fan-in, which suits layers followed by Relu."""
        fan_in = int(np.prod(shape[1:]))
        return self.add(name, self._random.normal(0, np.sqrt(2 / fan_in), shape))


def _convolution(
    name: str, source: str, weights: _Weights, channels: int, filters: int
) -> list[onnx.NodeProto]:
    """3x3 convolution that keeps the size, batch normalization, Relu."""
    kernel = weights.he_normal(f"{name}.weight", (filters, channels, 3, 3))
    statistics = [
        weights.add(f"{name}.bn.{part}", np.full(filters, value))
        for part, value in (("scale", 1), ("bias", 0), ("mean", 0), ("var", 1))
    ]
    return [
        helper.make_node(
            "Conv", [source, kernel], [f"{name}.sum"], name, kernel_shape=[3, 3], pads=[1] * 4
        ),
        helper.make_node(
            "BatchNormalization", [f"{name}.sum", *statistics], [f"{name}.norm"], f"{name}.bn"
        ),
        helper.make_node("Relu", [f"{name}.norm"], [f"{name}.out"], f"{name}.relu"),
    ]


def _dense(
    name: str, source: str, target: str, weights: _Weights, inputs: int, outputs: int
) -> onnx.NodeProto:
    """X W^T + b."""
    matrix = weights.he_normal(f"{name}.weight", (outputs, inputs))
    bias = weights.add(f"{name}.bias", np.zeros(outputs))
    return helper.make_node("Gemm", [source, matrix, bias], [target], name, transB=1)
