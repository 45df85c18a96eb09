"""Free dimensions and initializers that options give; onnxruntime is asked where it is there."""

import pathlib
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnxtrain import InferenceSession, OrtValue, SessionOptions
from onnxtrain.errors import ModelError, OptionError
from runtime.small import model

ADD = "(float[n,2] x) => (float[n,2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
NESTED = """(bool c, float[n] x) => (float[n] y) {
    y = If (c) <
        then_branch = one () => (float[n] a) <float[1] w = {1}> { a = Add(x, w) },
        else_branch = two () => (float[n] b) { b = Neg(x) }
    >
}"""
X = np.zeros((1, 2), np.float32)


def value(*numbers: float, dtype: Any = np.float32) -> OrtValue:
    return OrtValue.ortvalue_from_numpy(np.array(numbers, dtype))


def shapes(source: Any, options: SessionOptions) -> list[list[Any]]:
    runs = InferenceSession(source, options)
    return [a.shape for a in (*runs.get_inputs(), *runs.get_outputs())]


def external(dtype: int = onnx.TensorProto.FLOAT, offset: int = 0) -> onnx.ModelProto:
    """A model whose weight lies in a file."""
    proto = model(ADD)
    tensor = onnx.TensorProto(name="w", data_type=dtype, dims=[2], data_location=1)
    for key, entry in (("location", "w.bin"), ("offset", str(offset)), ("length", "8")):
        tensor.external_data.add(key=key, value=entry)
    proto.graph.initializer[0].CopyFrom(tensor)
    return proto


def test_free_dimensions_get_sizes_by_name() -> None:
    options = SessionOptions()
    options.add_free_dimension_override_by_name("n", 3)
    options.add_free_dimension_override_by_name("n", 4)
    options.add_free_dimension_override_by_name("other", 5)
    runs = InferenceSession(model(ADD), options)
    assert shapes(model(ADD), options) == [[3, 2], [3, 2]]
    assert runs.run(None, {"x": np.zeros((3, 2), np.float32)})[0].shape == (3, 2)
    with pytest.raises(ValueError, match=r"must have shape \[3, 2\], got \[1, 2\]"):
        runs.run(None, {"x": X})


@pytest.mark.parametrize("name", ["n", ""])
def test_free_dimensions_get_sizes_by_denotation(name: str) -> None:
    proto, options = model(ADD), SessionOptions()
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    dims[0].denotation = "DATA_BATCH"
    if not name:
        dims[0].ClearField("dim_param")
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 3)
    assert shapes(proto, options)[0] == [3, 2]
    if name:
        assert shapes(proto, options)[1] == [3, 2]
    dims[1].denotation = "DATA_BATCH"
    with pytest.raises(OptionError, match=r"axis 1 of input 'x' \(DATA_BATCH\) of size 3: its"):
        InferenceSession(proto, options)


@pytest.mark.parametrize("size", [-1, 2.5, True, None])
def test_sizes_are_whole_numbers(size: Any) -> None:
    options = SessionOptions()
    with pytest.raises(OptionError, match="the dimension of name 'n' cannot be"):
        options.add_free_dimension_override_by_name("n", size)
    with pytest.raises(OptionError, match="the dimension of denotation 'D' cannot be"):
        options.add_free_dimension_override_by_denotation("D", size)


def test_initializers_are_replaced() -> None:
    options = SessionOptions()
    options.add_initializer("w", value(10, 20))
    options.add_initializer("unknown", value(1))
    assert InferenceSession(model(ADD), options).run(None, {"x": X})[0].tolist() == [[10, 20]]
    assert InferenceSession(model(ADD)).run(None, {"x": X})[0].tolist() == [[1, 2]]
    with pytest.raises(OptionError, match="initializer 'w' has been given a value before"):
        options.add_initializer("w", value(1, 2))


def test_initializers_in_branches_are_replaced() -> None:
    options = SessionOptions()
    options.add_initializer("w", value(10))
    feeds = {"c": np.array(True), "x": np.zeros(1, np.float32)}
    assert InferenceSession(model(NESTED), options).run(None, feeds)[0].tolist() == [10]


def test_replaced_initializers_may_be_fed_too() -> None:
    proto, options = model(ADD), SessionOptions()
    proto.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [2]))
    options.add_initializer("w", value(10, 20))
    runs = InferenceSession(proto, options)
    assert runs.run(None, {"x": X})[0].tolist() == [[10, 20]]
    fed = {"x": X, "w": np.array([3, 4], np.float32)}
    assert runs.run(None, fed)[0].tolist() == [[3, 4]]


@pytest.mark.parametrize(
    ("given", "found"),
    [(value(1, 2, 3), r"float\[3\]"), (value(1, 2, dtype=np.float64), r"double\[2\]")],
)
def test_what_replaces_has_the_same_type_and_shape(given: OrtValue, found: str) -> None:
    options = SessionOptions()
    options.add_initializer("w", given)
    with pytest.raises(OptionError, match=rf"is {found}, in the model it is float\[2\]"):
        InferenceSession(model(ADD), options)


def test_narrow_initializers_are_replaced() -> None:
    text = "() => (float[2] y) <int4[2] w = {1, 2}> { y = Cast<to=1>(w) }"
    options = SessionOptions()
    options.add_initializer("w", OrtValue.ortvalue_from_numpy(np.array([-8, 7], ml_dtypes.int4)))
    assert InferenceSession(model(text), options).run(None, {})[0].tolist() == [-8, 7]


def test_only_values_replace() -> None:
    with pytest.raises(OptionError, match="given as a ndarray\n  make a value of it"):
        SessionOptions().add_initializer("w", np.ones(2))  # type: ignore[arg-type]


def test_external_data_need_not_be_there() -> None:
    options = SessionOptions()
    options.add_external_initializers(["w"], [value(10, 20)])
    with pytest.raises(ModelError, match="without a path"):
        InferenceSession(external())
    for source in (external(), external().SerializeToString()):
        assert InferenceSession(source, options).run(None, {"x": X})[0].tolist() == [[10, 20]]
    with pytest.raises(OptionError, match="initializer 'w' is in the model itself"):
        InferenceSession(model(ADD), options)
    options.add_external_initializers(["v"], [value(1)])
    with pytest.raises(OptionError, match="the model has no initializer 'v'"):
        InferenceSession(external(), options)
    with pytest.raises(OptionError, match="must have the same length, have 1, 0"):
        options.add_external_initializers(["u"], [])


@pytest.mark.parametrize("kind", [bytes, bytearray, np.frombuffer])
def test_files_may_be_given_as_their_contents(kind: Any, tmp_path: pathlib.Path) -> None:
    content = np.array([9, 7, 8], np.float32).tobytes()
    options = SessionOptions()
    given = kind(content, np.uint8) if kind is np.frombuffer else kind(content)
    options.add_external_initializers_from_files_in_memory(["w.bin"], [given], [12])
    onnx.save(external(offset=4), tmp_path / "m.onnx")
    for source in (external(offset=4), tmp_path / "m.onnx"):
        assert InferenceSession(source, options).run(None, {"x": X})[0].tolist() == [[7, 8]]
    options.add_external_initializers_from_files_in_memory(["w.bin"], [given], [8])
    with pytest.raises(OptionError, match="has 8 bytes, tensor 'w' ends at byte 12"):
        InferenceSession(external(offset=4), options)
    with pytest.raises(OptionError, match="have 1, 1, 0"):
        options.add_external_initializers_from_files_in_memory(["w.bin"], [given], [])


def test_onnxruntime_does_the_same() -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="compares with onnxruntime")
    proto = model(ADD)
    found = []
    for package in (onnxruntime, __import__("onnxtrain")):
        options = package.SessionOptions()
        options.add_free_dimension_override_by_name("n", 1)
        options.add_free_dimension_override_by_name("n", 2)
        weight = package.OrtValue.ortvalue_from_numpy(np.array([10, 20], np.float32))
        options.add_initializer("w", weight)
        runs = package.InferenceSession(proto.SerializeToString(), options)
        found.append(
            (
                [(a.name, a.type, a.shape) for a in (*runs.get_inputs(), *runs.get_outputs())],
                runs.run(None, {"x": X})[0].tolist(),
            )
        )
    assert found[0] == found[1]
