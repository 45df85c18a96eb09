import pathlib

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from onnxtrain.errors import FeedError, NodeError, NoKernelError, OptionError
from onnxtrain.kernels.registry import KernelRegistry, kernel
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.ort_value import OrtValue
from onnxtrain.runtime.session import InferenceSession, NodeArg
from runtime.small import REGISTRY, model, session

NEG = "(float[N,2] x) => (float[N,2] y) { y = Neg(x) }"
TWO = "(float[2] x) => (float[2] y, float[2] z) { y = Neg(x)  z = Abs(x) }"


def test_arrays_go_in_and_out() -> None:
    (y,) = session(NEG).run(None, {"x": np.array([[1, 2]], np.float32)})
    assert isinstance(y, np.ndarray) and y.dtype == np.float32 and y.tolist() == [[-1, -2]]


def test_arrays_lie_in_memory_as_onnxruntime_s_do() -> None:
    text = "(float[2,3] x) => (float[3,2] y) { y = Transpose(x) }"
    (y,) = InferenceSession(model(text)).run(None, {"x": np.ones((2, 3), np.float32)})
    assert y.flags.c_contiguous


@pytest.mark.parametrize("form", ["path", "str", "bytes", "proto", "ir"])
def test_a_model_is_taken_in_every_form(form: str, tmp_path: pathlib.Path) -> None:
    proto = model(NEG)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    source = {
        "path": path,
        "str": str(path),
        "bytes": path.read_bytes(),
        "proto": proto,
        "ir": ir.from_proto(proto),
    }[form]
    runs = InferenceSession(source, registry=REGISTRY)
    assert runs.run(["y"], {"x": np.ones((1, 2), np.float32)})[0].tolist() == [[-1, -1]]


def test_a_given_model_is_not_changed() -> None:
    given = ir.from_proto(model(NEG))
    before = ir.to_proto(given).SerializeToString()
    InferenceSession(given, registry=REGISTRY)
    assert ir.to_proto(given).SerializeToString() == before


def test_outputs_are_picked_by_name_in_the_order_asked_for() -> None:
    runs = session(TWO)
    z, y = runs.run(["z", "y"], {"x": np.array([1, -2], np.float32)})
    assert z.tolist() == [1, 2] and y.tolist() == [-1, 2]
    with pytest.raises(FeedError, match="the model has no output 'w'\n  outputs  y, z"):
        runs.run(["w"], {"x": np.ones(2, np.float32)})
    with pytest.raises(FeedError, match="a list of names of outputs, not the string 'y'"):
        runs.run("y", {"x": np.ones(2, np.float32)})


def test_options_of_others_are_refused() -> None:
    with pytest.raises(OptionError, match=r"are onnxtrain.SessionOptions, not onnxruntime\."):
        InferenceSession(model(NEG), onnxruntime.SessionOptions())


def test_inputs_and_outputs_are_described() -> None:
    runs = session("(float[N,3] x, int64[1] k) => (float[N,K] y) { y, i = TopK(x, k) }")
    assert runs.get_inputs() == [
        NodeArg("x", "tensor(float)", ["N", 3]),
        NodeArg("k", "tensor(int64)", [1]),
    ]
    assert runs.get_outputs() == [NodeArg("y", "tensor(float)", ["N", "K"])]
    assert runs.get_providers() == ["CPUExecutionProvider"]


DESCRIBED = [
    NEG,
    TWO,
    "(float x) => (float y) { y = Neg(x) }",
    "(bfloat16[A,1] x, bool[2] b) => (bfloat16[A,1] y, bool[2] c) "
    "{ y = Identity(x)  c = Identity(b) }",
    "(double[N,3] x) => (double[3,N] y) { y = Transpose(x) }",
    "(seq(float[N]) x) => (seq(float[N]) y) { y = Identity(x) }",
    "(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }",
]


@pytest.mark.parametrize("text", DESCRIBED)
def test_descriptions_are_those_of_onnxruntime(text: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="compares with onnxruntime")
    theirs = onnxruntime.InferenceSession(
        model(text).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    ours = session(text)

    def described(args: list) -> list[tuple]:
        return [(a.name, a.type, list(a.shape)) for a in args]

    assert described(ours.get_inputs()) == described(theirs.get_inputs())
    assert described(ours.get_outputs()) == described(theirs.get_outputs())


def test_tensors_and_ort_values_come_out_without_a_copy() -> None:
    seen: list[int] = []
    registry = KernelRegistry()

    @kernel("Neg", registry=registry)
    def neg(x):  # type: ignore[no-untyped-def]
        result = -x
        seen.extend([x.data_ptr(), result.data_ptr()])
        return result

    runs = InferenceSession(model(NEG), registry=registry)
    tensor = torch.ones(1, 2)
    (out,) = runs.run_torch(None, {"x": tensor})
    assert seen == [tensor.data_ptr(), out.data_ptr()]
    seen.clear()
    (value,) = runs.run_with_ort_values(None, {"x": OrtValue(tensor)})
    assert seen == [tensor.data_ptr(), value.data_ptr()]
    seen.clear()
    (array,) = runs.run(None, {"x": tensor})
    assert seen[1] == array.ctypes.data


def test_outputs_never_share_memory_with_inputs_or_each_other() -> None:
    text = """(float[2,2] x) => (float[2,2] a, float[2,2] b, float[1,2] c, float[2,2] x2) {
        a = Identity(x)  b = Transpose(x)  c, d = Split<num_outputs=2>(x)  x2 = Identity(a)
    }"""
    x = torch.arange(4.0).reshape(2, 2)
    results = session(text).run_torch(None, {"x": x})
    storages = {r.untyped_storage().data_ptr() for r in [x, *results]}
    assert len(storages) == 5
    assert results[1].tolist() == x.T.tolist()


def test_constants_cannot_be_reached_through_outputs() -> None:
    text = """(float[2] x) => (float[2] w, float[2] y) <float[2] c = {1, 2}> {
        w = Identity(c)  y = Add(x, c)
    }"""
    runs = session(text)
    w, _ = runs.run_torch(None, {"x": torch.zeros(2)})
    w.fill_(9)
    assert runs.run_torch(["y"], {"x": torch.zeros(2)})[0].tolist() == [1, 2]


def test_inputs_are_not_changed_and_results_stay_after_the_next_run() -> None:
    runs = session("(float[2] x) => (float[2] z) { y = Neg(x)  z = Abs(y) }")
    x = torch.tensor([1.0, -2.0])
    (first,) = runs.run_torch(None, {"x": x})
    runs.run_torch(None, {"x": torch.zeros(2)})
    assert x.tolist() == [1, -2] and first.tolist() == [1, 2]


def test_other_shapes_run_on_the_same_plan() -> None:
    runs = session(NEG)
    for rows in (1, 5, 0):
        assert runs.run_torch(None, {"x": torch.ones(rows, 2)})[0].shape == (rows, 2)


def test_a_failing_node_is_named() -> None:
    runs = session("(float[A,B] x) => (float[C,D] y) { y = MatMul(x, x) }")
    with pytest.raises(NodeError, match=r"node 'MatMul_y' \(ai.onnx::MatMul\) failed"):
        runs.run(None, {"x": np.ones((2, 3), np.float32)})


def test_a_missing_kernel_is_found_when_the_session_is_made() -> None:
    with pytest.raises(NoKernelError, match=r"no CPU kernel for ai\.onnx::Neg"):
        InferenceSession(model(NEG), registry=KernelRegistry())


def test_the_deterministic_option_reaches_kernels_and_torch() -> None:
    seen: list[tuple[bool, bool]] = []
    registry = KernelRegistry()

    @kernel("Neg", needs=["deterministic"], registry=registry)
    def neg(x, *, deterministic):  # type: ignore[no-untyped-def]
        seen.append((deterministic, torch.are_deterministic_algorithms_enabled()))
        return -x

    for on in (True, False):
        options = SessionOptions(use_deterministic_compute=on)
        runs = InferenceSession(model(NEG), options, registry=registry)
        runs.run_torch(None, {"x": torch.ones(1, 2)})
    assert seen == [(True, True), (False, False)]
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_failure_leaves_torch_s_settings_alone() -> None:
    text = "(float[A,B] x) => (float[C,D] y) { y = MatMul(x, x) }"
    runs = session(text, use_deterministic_compute=True)
    with pytest.raises(NodeError):
        runs.run_torch(None, {"x": torch.ones(2, 3)})
    assert not torch.are_deterministic_algorithms_enabled()


def test_random_numbers_follow_the_seed() -> None:
    text = "() => (float[4] y) { y = RandomUniform<shape=[4]>() }"
    a, b = (session(text, seed=3).run(None, {})[0] for _ in range(2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, session(text, seed=4).run(None, {})[0])


def test_initializers_that_are_inputs_too_need_not_be_fed() -> None:
    proto = model("(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    proto.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [2]))
    runs = session(proto)
    assert [a.name for a in runs.get_inputs()] == ["x"]
    assert runs.run(None, {"x": np.zeros(2, np.float32)})[0].tolist() == [1, 2]


@pytest.mark.parametrize(("ir_version", "names"), [(3, []), (4, ["s"])])
def test_initializers_that_are_inputs_too_may_be_fed(ir_version: int, names: list[str]) -> None:
    proto = model("(float[2,3] x) => (float y) <int64[2] s = {3, 2}> { y = Reshape(x, s) }")
    proto.ir_version = ir_version
    proto.graph.input.append(onnx.helper.make_tensor_value_info("s", onnx.TensorProto.INT64, ["N"]))
    runs, x = InferenceSession(proto), np.zeros((2, 3), np.float32)
    assert [a.name for a in runs.get_inputs()] == ["x"]
    assert [a.name for a in runs.get_overridable_initializers()] == names
    assert runs.run(None, {"x": x})[0].shape == (3, 2)
    if names:
        assert runs.run(None, {"x": x, "s": np.array([6])})[0].shape == (6,)
    else:
        with pytest.raises(FeedError, match="no input 's'"):
            runs.run(None, {"x": x, "s": np.array([6])})
    assert runs.run(None, {"x": x})[0].shape == (3, 2)


def test_external_data_of_an_onnx_ir_model_is_found(tmp_path: pathlib.Path) -> None:
    proto = model("(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    options = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    weight = onnx.numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    proto.graph.initializer[0].CopyFrom(weight)
    onnx.save(proto, tmp_path / "model.onnx", **options)
    loaded = ir.load(tmp_path / "model.onnx")
    assert InferenceSession(loaded).run(None, {"x": np.zeros(2, np.float32)})[0].tolist() == [1, 2]


def test_what_a_file_says_about_itself() -> None:
    proto = model("(float[2] x) => (float[2] y) { y = Neg(x) }")
    proto.producer_name, proto.domain, proto.model_version = "maker", "place", 3
    proto.doc_string, proto.graph.doc_string, proto.graph.name = "what", "how", "net"
    proto.metadata_props.add(key="classes", value="2")
    meta = InferenceSession(proto).get_modelmeta()
    assert (meta.producer_name, meta.domain, meta.version) == ("maker", "place", 3)
    assert (meta.description, meta.graph_description, meta.graph_name) == ("what", "how", "net")
    assert meta.custom_metadata_map == {"classes": "2"}
    bare = session("(float[2] x) => (float[2] y) { y = Neg(x) }").get_modelmeta()
    assert (bare.producer_name, bare.version, bare.custom_metadata_map) == ("", 0, {})


def test_providers_have_as_many_options() -> None:
    with pytest.raises(OptionError, match="must have the same length, have 1, 2"):
        InferenceSession(
            model("(float[2] x) => (float[2] y) { y = Neg(x) }"),
            providers=["CPUExecutionProvider"],
            provider_options=[{}, {}],
        )


def test_options_of_providers() -> None:
    runs = session("(float[2] x) => (float[2] y) { y = Neg(x) }")
    assert runs.get_provider_options() == {"CPUExecutionProvider": {}}
