"""The gradient of Pad before opset 11, where the sizes of what is padded are not known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from onnxtrain import grad

PADS = [0, 0, 2, 1, 0, 0, 2, 0]
"""Borders above, left, below and right of images of 3x4: those of rows overlap."""


@pytest.mark.parametrize("opset", [7, 10])
@pytest.mark.parametrize(("mode", "in_torch"), [("reflect", "reflect"), ("edge", "replicate")])
@pytest.mark.parametrize("sizes", [["n", 2, 3, 4], ["n", "c", "h", "w"]], ids=["batch", "all"])
def test_borders_are_added_to_what_they_were_copied_from(
    mode: str, in_torch: str, opset: int, sizes: list[object]
) -> None:
    real = TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("Tanh", ["x"], ["t"]),
            helper.make_node("Pad", ["t"], ["y"], mode=mode, pads=PADS),
        ],
        "padded",
        [helper.make_tensor_value_info("x", real, sizes)],
        [helper.make_tensor_value_info("y", real, ["a", "b", "c", "d"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 2, 3, 4)).astype(np.float32)
    dy = rng.normal(size=(2, 2, 7, 5)).astype(np.float32)
    found = grad(model, wrt=["x"])({"x": x, "y_grad": dy})["x"]
    given = torch.tensor(x, requires_grad=True)
    padded = torch.nn.functional.pad(given.tanh(), (1, 0, 2, 2), mode=in_torch)
    padded.backward(torch.tensor(dy))
    np.testing.assert_allclose(found, given.grad, rtol=1e-5, atol=1e-6)
