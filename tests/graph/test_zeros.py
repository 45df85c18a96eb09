"""Sizes of 0 that only a run knows, in opsets where a 0 among the sizes of a Reshape copies one."""

import numpy as np
import onnx_ir as ir
import pytest

from gradients.emit import agrees_with_differences, differentiated
from onnxtrain.runtime.session import InferenceSession

RESHAPE = "(double[N,M] x, int64[2] s) => (double[A,B] y) { y = Reshape(x, s) }"


@pytest.mark.parametrize("opset", [9, 13, 14])
@pytest.mark.parametrize(
    ("size", "target", "found"),
    [
        ((0, 3), (3, -1), (3, 0)),
        ((0, 0), (0, 2), (0, 2)),
        ((3, 0), (0, 0), (3, 0)),
        ((2, 3), (0, -1), (2, 3)),
    ],
)
def test_the_gradient_has_the_sizes_of_the_input(
    size: tuple[int, ...], target: tuple[int, ...], found: tuple[int, ...], opset: int
) -> None:
    feeds = {"x": np.ones(size), "s": np.asarray(target), "d_y": np.ones(found)}
    outputs = agrees_with_differences(RESHAPE, "x", opset=opset, **feeds)
    assert outputs["y"].shape == found
    assert outputs["x_grad"].shape == size


def test_a_saved_model_still_knows_it() -> None:
    saved = ir.to_proto(differentiated(RESHAPE, "x", opset=13)).SerializeToString()
    session = InferenceSession(saved)
    feeds = {"x": np.ones((0, 3)), "s": np.asarray([3, -1]), "d_y": np.ones((3, 0))}
    assert session.run(["x_grad"], feeds)[0].shape == (0, 3)


def test_a_reshape_of_the_model_itself_copies() -> None:
    session = InferenceSession(ir.to_proto(differentiated(RESHAPE, "x", opset=13)))
    feeds = {"x": np.ones((2, 3)), "s": np.asarray([0, 0]), "d_y": np.ones((2, 3))}
    assert session.run(["y"], feeds)[0].shape == (2, 3)
