"""GridSample against ONNX's reference, and cubic samples around an image against onnxruntime."""

import itertools

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
import torch
from onnx import helper

from onnxtrain.kernels.vision.sample_grad import grid_sample_by_pixels
from onnxtrain.runtime.session import InferenceSession

GENERATOR = np.random.default_rng(0)


def sampling(x: np.ndarray, grid: np.ndarray, **attributes: object) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    return helper.make_model(
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
        ir_version=10,
    )


def both(x: np.ndarray, grid: np.ndarray, **attributes: object) -> list[np.ndarray]:
    model = sampling(x, grid, **attributes)
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


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_cubic_around_the_image(corners: int, padding: str) -> None:
    """ONNX's own reference moves what lies outside to the border first; no runtime does."""
    x = GENERATOR.standard_normal((1, 2, 4, 5)).astype(np.float32)
    grid = GENERATOR.uniform(-1.8, 1.8, (1, 6, 6, 2)).astype(np.float32)
    options = {"mode": "cubic", "padding_mode": padding, "align_corners": corners}
    model, feeds = sampling(x, grid, **options), {"x": x, "grid": grid}
    ours = InferenceSession(model).run(None, feeds)[0]
    other = onnxruntime.InferenceSession(model.SerializeToString())
    np.testing.assert_allclose(ours, other.run(None, feeds)[0], atol=2e-6)
    by_pixels = grid_sample_by_pixels(torch.from_numpy(x), torch.from_numpy(grid), **options)
    np.testing.assert_allclose(ours, by_pixels, atol=2e-6)
