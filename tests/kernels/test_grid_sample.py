"""GridSample of any rank and of whole numbers, against ONNX's reference."""

import itertools

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import helper

from onnxtrain.runtime.session import InferenceSession

GENERATOR = np.random.default_rng(0)


def both(x: np.ndarray, grid: np.ndarray, **attributes: object) -> list[np.ndarray]:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("GridSample", ["x", "grid"], ["y"], **attributes)],
            "one",
            [
                helper.make_tensor_value_info("x", kind, x.shape),
                helper.make_tensor_value_info("grid", onnx.TensorProto.FLOAT, grid.shape),
            ],
            [helper.make_tensor_value_info("y", kind, None)],
        ),
        opset_imports=[helper.make_opsetid("", 22)],
    )
    feeds = {"x": x, "grid": grid}
    reference = onnx.reference.ReferenceEvaluator(model)
    return [InferenceSession(model).run(None, feeds)[0], reference.run(None, feeds)[0]]


@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize(
    ("rank", "mode"), [*itertools.product([1, 4], ["linear", "nearest", "cubic"]), (3, "cubic")]
)
def test_any_rank(rank: int, mode: str, corners: int, padding: str) -> None:
    x = GENERATOR.standard_normal((1, 2, *range(3, 3 + rank))).astype(np.float32)
    grid = GENERATOR.uniform(-0.95, 0.95, (1, *[2] * rank, rank)).astype(np.float32)
    ours, theirs = both(x, grid, mode=mode, padding_mode=padding, align_corners=corners)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, atol=2e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64])
def test_whole_numbers(dtype: type) -> None:
    x = GENERATOR.integers(0, 100, (1, 2, 4, 5)).astype(dtype)
    grid = GENERATOR.uniform(-1.5, 1.5, (1, 3, 3, 2)).astype(np.float32)
    ours, theirs = both(x, grid, mode="nearest")
    assert ours.dtype == dtype
    np.testing.assert_array_equal(ours, theirs)
