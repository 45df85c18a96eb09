"""A product of bytes is linear in the scales that make them numbers."""

import numpy as np
import onnx_ir as ir
import pytest

from graph.text import proto
from onnxtrain.cli.checking.differences import Differences
from onnxtrain.graph.prepare import prepare

NODES = {
    "plain": "y = com.microsoft.QGemm(a, s, z, b, t, w)",
    "transposed": "y = com.microsoft.QGemm<transA=1, transB=1, alpha=0.5>(a, s, z, b, t, w)",
    "bias": "y = com.microsoft.QGemm(a, s, z, b, t, w, c)",
}


@pytest.mark.parametrize("kind", NODES)
def test_gradients_of_the_scales_agree_with_differences(kind: str) -> None:
    text = f"""(uint8[3,3] a, float s, uint8 z, uint8[3,3] b, float t, uint8 w, int32[3] c)
        => (float[3,3] y) {{ {NODES[kind]} }}"""
    rng = np.random.default_rng(0)
    feeds = {
        "a": rng.integers(0, 255, (3, 3), np.uint8),
        "b": rng.integers(0, 255, (3, 3), np.uint8),
        "c": rng.integers(-99, 99, 3, np.int32),
        "s": np.float32(0.5),
        "t": np.float32(0.25),
        "z": np.uint8(100),
        "w": np.uint8(140),
    }
    model = prepare(ir.from_proto(proto(text, com_microsoft=1)))
    arrays = {name: np.asarray(value) for name, value in feeds.items()}
    found = Differences(model, arrays, ["s", "t"], ["y"], 0)
    assert found.check_together(3).error < 1e-3
    assert abs(found.check("s", 1).by_graph) > 1
