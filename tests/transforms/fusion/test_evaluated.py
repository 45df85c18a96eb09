"""Values that never change are computed, whatever operators they are written with."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.fusion.evaluated import evaluated
from onnxtrain.transforms.fusion.known import Triangle
from onnxtrain.transforms.fusion.triangle import Masks

TEXT = """
<ir_version: 10, opset_import: ["" : 18]>
masked (float[2, 4] x, int64[4] given) => (float[4, 4] y)
<int64 axis = {0}, float[4] ones = {1, 1, 1, 1}, int64[1] first = {0}, int64[1] second = {1},
 float zero = {0}, float low = {-1e30}, int64[4, 1] places = {0, 1, 2, 3}> {
    counted = CumSum(ones, axis)
    picked = GatherND(counted, places)
    row = Unsqueeze(picked, second)
    column = Unsqueeze(counted, first)
    seen = LessOrEqual(column, row)
    mask = Where(seen, zero, low)
    moved = Gather(counted, given)
    from_input = Add(moved, mask)
    y = Add(mask, from_input)
}
"""


@pytest.fixture
def values():
    model = prepare(load_model(onnx.parser.parse_model(TEXT)))
    return {value.name: value for node in model.graph for value in node.outputs}


def test_a_triangle_behind_other_operators(values) -> None:
    masks = Masks()
    assert masks.read(values["mask"]) is None
    assert masks.settled(values["mask"]) == Triangle(0, 0.0, float(np.float32(-1e30)), 4, 4)


def test_what_is_computed_is_what_the_graph_gives(values) -> None:
    found = evaluated(values["column"])
    np.testing.assert_array_equal(found.numpy(), [[1.0, 2.0, 3.0, 4.0]])


def test_what_depends_on_an_input_is_not_known(values) -> None:
    assert evaluated(values["from_input"]) is None
    assert Masks().settled(values["from_input"]) is None
