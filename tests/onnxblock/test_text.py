from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from onnxtrain import onnxblock
from onnxtrain.onnxblock.text import add_text

SOURCE = """
twice (float[N] x, bool flag) => (float[N] y) <float two = {2.0}> {
    doubled = Mul (x, two)
    y = If (flag) <then_branch = yes () => (float[N] a) { a = Identity (doubled) },
                   else_branch = no () => (float[N] b) { b = Neg (doubled) }>
}
"""


def test_values_of_bodies_are_renamed_with_their_graph(echo: Any, run: Any) -> None:
    with onnxblock.base(echo(v=("n",))) as accessor:
        model = accessor.model
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(False), "no"))
        (first,) = add_text(model, SOURCE, {"x": "v", "flag": "no"})
        (second,) = add_text(model, SOURCE, {"x": first, "flag": "no"})
        value = onnx.helper.make_tensor_value_info
        model.graph.output.append(value(second, onnx.TensorProto.FLOAT, ["n"]))
        onnx.checker.check_model(model, full_check=True)
        x = np.array([1.0, -3.0], np.float32)
        np.testing.assert_array_equal(run(model, x)[1], 4 * x)
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)
