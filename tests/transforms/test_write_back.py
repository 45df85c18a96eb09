"""New values in an onnx-ir model and in a protobuf; nothing else changes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from onnxtrain.errors import ParameterError
from onnxtrain.transforms.patch import patched
from onnxtrain.transforms.write_back import weight_names, write_back
from training.small import mlp, model_of, normal


def in_ir(model: onnx.ModelProto, values) -> onnx.ModelProto:
    return ir.to_proto(write_back(ir.from_proto(model), values))


BOTH = pytest.mark.parametrize("write", [in_ir, patched], ids=["onnx-ir", "protobuf"])


def initializer(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    (found,) = (t for t in model.graph.initializer if t.name == name)
    return found


def constant(model: onnx.ModelProto, name: str) -> onnx.AttributeProto:
    (found,) = (n.attribute[0] for n in model.graph.node if n.output[0] == name)
    return found


def constants() -> onnx.ModelProto:
    model = model_of(
        """(float[3] x) => (float[3] y) {
            b = Constant<value_floats=[0.5, 1.5, 2.5]>()
            k = Constant<value_float=0.5>()
            t = Constant<value=float[3] {1, 2, 3}>()
            i = Constant<value_int=1>()
            f = Cast<to=1>(i)
            s = Sum(x, b, k, t, f)
            y = Neg(s)
        }"""
    )
    return model


def test_weights_are_initializers_and_constants():
    assert weight_names(ir.from_proto(mlp())) == {
        "fc1.weight",
        "fc1.bias",
        "fc2.weight",
        "fc2.bias",
    }
    assert weight_names(ir.from_proto(constants())) == {"b", "k", "t", "i"}


@BOTH
def test_initializers_get_their_values(write):
    new = normal(5, seed=9)
    written = write(mlp(), {"fc1.bias": new})
    np.testing.assert_array_equal(numpy_helper.to_array(initializer(written, "fc1.bias")), new)
    for name in ("fc1.weight", "fc2.weight", "fc2.bias"):
        np.testing.assert_array_equal(
            numpy_helper.to_array(initializer(written, name)),
            numpy_helper.to_array(initializer(mlp(), name)),
        )


@BOTH
def test_constants_keep_their_form(write):
    values = {
        "b": np.array([7, 8, 9], np.float32),
        "k": np.array(4, np.float32),
        "t": np.array([4, 5, 6], np.float32),
    }
    written = write(constants(), values)
    assert list(constant(written, "b").floats) == [7, 8, 9]
    assert constant(written, "k").f == 4
    np.testing.assert_array_equal(numpy_helper.to_array(constant(written, "t").t), [4, 5, 6])
    assert [n.op_type for n in written.graph.node] == [n.op_type for n in constants().graph.node]


@BOTH
def test_notes_on_a_tensor_stay(write):
    model = mlp()
    tensor = initializer(model, "fc1.bias")
    tensor.doc_string = "a bias"
    written = initializer(write(model, {"fc1.bias": normal(5)}), "fc1.bias")
    assert written.doc_string == "a bias"
    tensor.metadata_props.add(key="k", value="v")
    written = initializer(write(model, {"fc1.bias": normal(5)}), "fc1.bias")
    assert [(p.key, p.value) for p in written.metadata_props] == [("k", "v")]


@BOTH
@pytest.mark.parametrize(
    "array",
    [
        np.array([1.5, -2.25], ml_dtypes.bfloat16),
        np.array([1.5, -2.25], np.float16),
        np.array(0.1, np.float64),
        np.arange(6, dtype=np.float32).reshape(3, 2).T,
    ],
    ids=["bfloat16", "float16", "scalar", "strides"],
)
def test_types_and_shapes(write, array):
    tensor = ir.serde.serialize_tensor(ir.Tensor(np.zeros(array.shape, array.dtype), name="w"))
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", tensor.data_type, array.shape)],
        [tensor],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    written = initializer(write(model, {"w": array}), "w")
    assert written.data_type == tensor.data_type
    np.testing.assert_array_equal(numpy_helper.to_array(written), array)


@pytest.mark.parametrize("field", ["float_data", "raw_data"])
def test_a_protobuf_may_hold_values_in_any_field(field):
    model = mlp()
    tensor = initializer(model, "fc2.bias")
    tensor.ClearField("raw_data")
    if field == "float_data":
        tensor.float_data.extend([1, 2, 3])
    else:
        tensor.raw_data = np.array([1, 2, 3], np.float32).tobytes()
    written = initializer(patched(model, {"fc2.bias": np.full(3, 5, np.float32)}), "fc2.bias")
    np.testing.assert_array_equal(numpy_helper.to_array(written), [5, 5, 5])


def test_a_protobuf_is_copied():
    model = mlp()
    before = model.SerializeToString()
    patched(model, {"fc1.bias": normal(5, seed=9)})
    assert model.SerializeToString() == before


@BOTH
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fc9": normal(5)}, "no tensor 'fc9' to write back"),
        ({"fc1.bias": normal(4)}, r"'fc1.bias' of the model is float \[5\], cannot take .* \[4\]"),
        ({"fc1.bias": normal(5, dtype=np.float64)}, "cannot take float64"),
    ],
)
def test_values_that_do_not_fit_are_refused(write, values, message):
    with pytest.raises(ParameterError, match=message):
        write(mlp(), values)


@BOTH
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"k": normal(1)}, r"'k' of the model is float \[\]"),
        ({"b": normal(2)}, r"'b' of the model is float \[3\]"),
        ({"t": normal(2)}, r"'t' of the model is float \[3\]"),
        ({"i": normal(1)}, "Constant 'i' holds its value as 'value_int'"),
    ],
)
def test_constants_that_do_not_fit_are_refused(write, values, message):
    with pytest.raises(ParameterError, match=message):
        write(constants(), values)


def test_external_data_comes_inside(tmp_path):
    onnx.save(
        mlp(),
        tmp_path / "model.onnx",
        save_as_external_data=True,
        location="data.bin",
        size_threshold=0,
    )
    outside = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    files = {"data.bin": (tmp_path / "data.bin").read_bytes()}
    written = patched(outside, {"fc1.bias": normal(5, seed=9)}, files)
    assert not any(t.external_data or t.data_location for t in written.graph.initializer)
    np.testing.assert_array_equal(
        numpy_helper.to_array(initializer(written, "fc1.weight")),
        numpy_helper.to_array(initializer(mlp(), "fc1.weight")),
    )
    np.testing.assert_array_equal(
        numpy_helper.to_array(initializer(written, "fc1.bias")), normal(5, seed=9)
    )


def branches() -> onnx.ModelProto:
    return model_of(
        """(bool c, float[2] x) => (float[2] y) <float[2] u = {5.0, 5.0}> {
          h = Add(x, u)
          y = If (c) <
            then_branch = t () => (float[2] a) <float[2] w = {1.0, 2.0}> { a = Mul(h, w) },
            else_branch = e () => (float[2] b) {
              w = Constant <value = float[2] {3.0, 4.0}> ()
              b = Mul(h, w)
            }>
        }"""
    )


@BOTH
def test_tensors_in_bodies_are_told_apart_and_written_back(write):
    assert weight_names(ir.from_proto(branches())) == {"u", "w", "w_2"}
    new = {name: np.full(2, k, np.float32) for k, name in enumerate(["u", "w", "w_2"])}
    saved = write(branches(), new)
    (node,) = (node for node in saved.graph.node if node.op_type == "If")
    bodies = {a.name: a.g for a in node.attribute}
    assert numpy_helper.to_array(initializer(saved, "u")).tolist() == [0, 0]
    (inner,) = bodies["then_branch"].initializer
    assert (inner.name, numpy_helper.to_array(inner).tolist()) == ("w", [1, 1])
    held = bodies["else_branch"].node[0].attribute[0].t
    assert numpy_helper.to_array(held).tolist() == [2, 2]


def test_what_was_read_from_external_data_stays_equal_but_for_its_values():
    """Those readers leave ``data_location`` set, and files with it set are quantisers' output."""
    model = mlp()
    initializer(model, "fc1.bias").data_location = onnx.TensorProto.DEFAULT
    new = {"fc1.bias": normal(5), "fc2.bias": normal(3)}
    new = {name: np.resize(a, initializer(model, name).dims) for name, a in new.items()}
    written = patched(model, new)
    assert initializer(written, "fc1.bias").HasField("data_location")
    assert not initializer(written, "fc2.bias").HasField("data_location")
