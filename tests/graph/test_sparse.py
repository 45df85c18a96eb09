"""Sparse tensors are read as dense ones, wherever they stand."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from graph.text import proto
from onnxtrain.errors import ModelError
from onnxtrain.graph.loading.load import load_model, load_source
from onnxtrain.graph.loading.sparse import dense
from onnxtrain.runtime.session import InferenceSession

FLAT = np.array([1, 5])
BY_AXIS = np.array([[0, 1], [1, 2]])
FULL = np.array([[0, 3, 0], [0, 0, 4]], np.float32)


def sparse(places: np.ndarray, name: str = "s") -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.array([3, 4], np.float32), name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(places), [2, 3])


def added() -> onnx.ModelProto:
    return proto("(float[2, 3] x) => (float[2, 3] y) { y = Add(x, s) }")


@pytest.mark.parametrize("places", [FLAT, BY_AXIS], ids=["flat", "by axis"])
def test_initializers(places):
    model = added()
    model.graph.sparse_initializer.append(sparse(places))
    (y,) = InferenceSession(model).run(None, {"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(y, FULL + 1)
    assert len(model.graph.sparse_initializer) == 1, "the given model was changed"


def test_constants():
    model = added()
    model.graph.node.insert(0, helper.make_node("Constant", [], ["s"], sparse_value=sparse(FLAT)))
    (y,) = InferenceSession(model).run(None, {"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(y, FULL + 1)


def test_constants_in_bodies():
    inner = added().graph
    inner.ClearField("input")
    inner.node.insert(0, helper.make_node("Constant", [], ["s"], sparse_value=sparse(FLAT)))
    model = proto("(float[2, 3] x, bool c) => (float[2, 3] z) { z = Identity(x) }")
    del model.graph.node[:]
    node = helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner)
    model.graph.node.append(node)
    feeds = {"x": np.zeros((2, 3), np.float32), "c": np.array(True)}
    np.testing.assert_array_equal(InferenceSession(model).run(None, feeds)[0], FULL)


def test_what_is_written_back_is_dense():
    model = added()
    model.graph.sparse_initializer.append(sparse(FLAT))
    (tensor,) = load_source(model).proto.graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), FULL)


def test_a_model_without_is_not_copied():
    model = added()
    assert dense(model) is model


def test_places_outside_of_the_tensor():
    model = added()
    model.graph.sparse_initializer.append(sparse(np.array([1, 6])))
    with pytest.raises(ModelError, match="not a valid ONNX model"):
        load_model(model)
