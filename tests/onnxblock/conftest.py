from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxtrain import onnxblock


@pytest.fixture
def echo() -> Callable[..., onnx.ModelProto]:
    """A model that gives its inputs back, so that predictions are whatever a test feeds.

    ``echo(y=("b", 4))`` has the output ``y`` and the input ``y_in`` of that shape.
    """

    def make(
        element_type: int = TensorProto.FLOAT, opset: int = 18, **shapes: Sequence[int | str] | None
    ) -> onnx.ModelProto:
        def values(suffix: str) -> list[onnx.ValueInfoProto]:
            return [
                helper.make_tensor_value_info(name + suffix, element_type, shape)
                for name, shape in shapes.items()
            ]

        nodes = [helper.make_node("Identity", [f"{name}_in"], [name]) for name in shapes]
        graph = helper.make_graph(nodes, "echo", values("_in"), values(""))
        return helper.make_model(
            graph, ir_version=9, opset_imports=[helper.make_opsetid("", opset)]
        )

    return make


@pytest.fixture
def perceptron() -> onnx.ModelProto:
    """``output = relu(x @ w1 + b1) @ w2 + b2`` from 4 to 8 to 3 features."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (4, 8), "b1": (8,), "w2": (8, 3), "b2": (3,)}
    weights = [
        numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["a"]),
        helper.make_node("Gemm", ["a", "w2", "b2"], ["output"]),
    ]
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 3])],
        weights,
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture
def forward() -> Callable[..., onnx.ModelProto]:
    """Build blocks over the named outputs of a model; gives the model with their results."""

    class Whole(onnxblock.ForwardBlock):
        def __init__(self, block: Callable[..., Any]) -> None:
            super().__init__()
            self.block = block

        def build(self, *names: str) -> Any:
            return self.block(*names)

    def make(model: onnx.ModelProto, block: Callable[..., Any], *names: str) -> onnx.ModelProto:
        whole = Whole(block)
        with onnxblock.base(model):
            whole(*names)
        return whole.to_model_proto()

    return make


@pytest.fixture
def run() -> Callable[..., list[Any]]:
    """Run a model on its inputs in order; bfloat16 by ONNX's evaluator, the rest by onnxruntime."""

    def call(model: onnx.ModelProto, *inputs: np.ndarray) -> list[Any]:
        feeds = {value.name: array for value, array in zip(model.graph.input, inputs, strict=True)}
        if any(array.dtype.name == "bfloat16" for array in inputs):
            return list(ReferenceEvaluator(model).run(None, feeds))
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        return list(session.run(None, feeds))

    return call
