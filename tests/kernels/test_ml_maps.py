"""Maps are Python dicts: made by ZipMap, taken by CastMap and DictVectorizer."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxtrain.errors import OnnxTrainError
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.testing.cases.ml import MACHINE
from onnxtrain.types import ML

ort = pytest.importorskip("onnxruntime", reason="compares with onnxruntime")

FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
LONGS = helper.make_tensor_type_proto(TensorProto.INT64, None)
WORDS = helper.make_tensor_type_proto(TensorProto.STRING, None)
X = np.array([[1, -2, 0.5], [3, 0.25, -1], [0.5, 0.5, 2]], np.float32)


def map_of(key: int, value: onnx.TypeProto) -> onnx.TypeProto:
    return helper.make_map_type_proto(key, value)


def model_of(
    nodes: list[onnx.NodeProto], x: onnx.TypeProto, *outputs: onnx.TypeProto
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "maps",
        [helper.make_value_info("x", x)],
        [helper.make_value_info(f"y{i}", type_) for i, type_ in enumerate(outputs)],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(ML, 3)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def node(op: str, x: str, *ys: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, [x], list(ys), domain=ML, **attributes)


def both(model: onnx.ModelProto, x: Any) -> tuple[list[Any], list[Any]]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return InferenceSession(model).run(None, {"x": x}), session.run(None, {"x": x})


@pytest.mark.parametrize(
    ("key", "labels"),
    [
        (TensorProto.INT64, {"classlabels_int64s": [10, 20, 30]}),
        (TensorProto.STRING, {"classlabels_strings": ["a", "b", "c"]}),
    ],
)
def test_rows_become_maps(key: int, labels: dict[str, Any]) -> None:
    maps = helper.make_sequence_type_proto(map_of(key, FLOATS))
    ours, theirs = both(model_of([node("ZipMap", "x", "y0", **labels)], FLOATS, maps), X)
    assert ours == theirs
    assert [list(row.values()) for row in ours[0]] == X.tolist()


def test_a_classifier_gives_labels_and_maps() -> None:
    labels = [5, 6, 7]
    nodes = [
        node("SVMClassifier", "x", "y0", "scores", classlabels_ints=labels, kernel_type="RBF",
             prob_a=[-1.5, -0.75, -2.0], prob_b=[0.1, -0.2, 0.3], **MACHINE),
        node("ZipMap", "scores", "y1", classlabels_int64s=labels),
    ]  # fmt: skip
    maps = helper.make_sequence_type_proto(map_of(TensorProto.INT64, FLOATS))
    ours, theirs = both(model_of(nodes, FLOATS, LONGS, maps), X)
    np.testing.assert_array_equal(ours[0], theirs[0])
    for our, their in zip(ours[1], theirs[1], strict=True):
        assert our.keys() == their.keys() == set(labels)
        assert sum(our.values()) == pytest.approx(1, abs=1e-6)
        np.testing.assert_allclose(list(our.values()), list(their.values()), atol=5e-7)


@pytest.mark.parametrize(
    "form", [{}, {"map_form": "SPARSE", "max_map": 6}], ids=["dense", "sparse"]
)
@pytest.mark.parametrize(
    ("cast", "result"), [("TO_FLOAT", FLOATS), ("TO_INT64", LONGS)], ids=["float", "int64"]
)
def test_maps_become_rows(form: dict[str, Any], cast: str, result: onnx.TypeProto) -> None:
    of = model_of(
        [node("CastMap", "x", "y0", cast_to=cast, **form)],
        map_of(TensorProto.INT64, FLOATS),
        result,
    )
    ours, theirs = both(of, {3: 1.5, 0: 2.25, 5: -4.0})
    np.testing.assert_array_equal(ours[0], theirs[0])
    assert ours[0].dtype == theirs[0].dtype


def test_words_become_numbers() -> None:
    of = model_of(
        [node("CastMap", "x", "y0", cast_to="TO_FLOAT")], map_of(TensorProto.INT64, WORDS), FLOATS
    )
    assert InferenceSession(of).run(None, {"x": {3: "1.5", 0: "-2"}})[0].tolist() == [[-2, 1.5]]


def test_numbers_become_words() -> None:
    of = model_of(
        [node("CastMap", "x", "y0", cast_to="TO_STRING")], map_of(TensorProto.INT64, FLOATS), WORDS
    )
    ours, theirs = both(of, {3: 1.5, 0: -2.0})
    assert ours[0].tolist() == theirs[0].tolist()


def test_whole_numbers_stay_whole() -> None:
    of = model_of(
        [node("DictVectorizer", "x", "y0", string_vocabulary=["a", "b"])],
        map_of(TensorProto.STRING, LONGS),
        LONGS,
    )
    (found,) = InferenceSession(of).run(None, {"x": {"b": 2}})
    assert (found.dtype, found.tolist()) == (np.int64, [[0, 2]])


@pytest.mark.parametrize(
    ("key", "value", "vocabulary", "x"),
    [
        (TensorProto.STRING, FLOATS, {"string_vocabulary": ["a", "b", "z"]}, {"b": 2.5, "a": 1.0}),
        (TensorProto.INT64, FLOATS, {"int64_vocabulary": [7, 5, 9]}, {5: 2.5, 9: 1.0, 4: 3.0}),
    ],
)
def test_a_vocabulary_orders_a_map(
    key: int, value: onnx.TypeProto, vocabulary: dict[str, Any], x: dict[Any, Any]
) -> None:
    of = model_of([node("DictVectorizer", "x", "y0", **vocabulary)], map_of(key, value), value)
    ours, theirs = both(of, x)
    np.testing.assert_array_equal(ours[0].reshape(-1), theirs[0].reshape(-1))
    assert ours[0].dtype == theirs[0].dtype


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"map_form": "SPARSE", "max_map": 2}, "the key 3 is not below max_map = 2"),
        ({"map_form": "LOOSE"}, "DENSE or SPARSE"),
        ({"cast_to": "TO_BYTES"}, "TO_FLOAT"),
    ],
)
def test_what_a_map_cannot_become(attributes: dict[str, Any], why: str) -> None:
    of = model_of(
        [node("CastMap", "x", "y0", **attributes)], map_of(TensorProto.INT64, FLOATS), FLOATS
    )
    with pytest.raises(OnnxTrainError, match=why):
        InferenceSession(of).run(None, {"x": {3: 1.0}})


def test_every_number_of_a_row_needs_a_label() -> None:
    maps = helper.make_sequence_type_proto(map_of(TensorProto.INT64, FLOATS))
    of = model_of([node("ZipMap", "x", "y0", classlabels_int64s=[1, 2])], FLOATS, maps)
    with pytest.raises(OnnxTrainError, match="2 labels for 3 numbers"):
        InferenceSession(of).run(None, {"x": X})
