import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.backend.base import Backend, BackendRep

import onnxtrain
from onnxtrain import backend
from onnxtrain.errors import DeviceError, FeedError

X = np.array([[-1.0, 2.0], [3.0, -4.0]], np.float32)
Y = np.array([[10.0, 20.0]], np.float32)


def added(op: str = "Add", domain: str = "", opset: int = 17) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "y"], ["z"], "node", domain=domain)],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None, 2]) for n in ("x", "y")],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [None, 2])],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("test", 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=imports)


def test_it_is_a_backend_of_onnx():
    assert issubclass(backend.OnnxTrainBackend, Backend)
    assert issubclass(backend.OnnxTrainBackendRep, BackendRep)
    assert onnxtrain.backend is backend


@pytest.mark.parametrize("inputs", [[X, Y], (X, Y), {"x": X, "y": Y}])
def test_a_prepared_model_runs_on_lists_and_names(inputs, device):
    (z,) = backend.prepare(added(), device.upper()).run(inputs)
    np.testing.assert_array_equal(z, X + Y)


def test_models_come_as_paths_bytes_and_sessions(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(added(), path)
    for model in (path, path.read_bytes(), onnxtrain.InferenceSession(path)):
        (z,) = backend.run_model(model, [X, Y])
        np.testing.assert_array_equal(z, X + Y)
    assert backend.run == backend.run_model


def test_session_options_are_passed_on():
    with pytest.raises(TypeError):
        backend.prepare(added(), no_such_option=1)
    rep = backend.prepare(added(), use_deterministic_compute=True)
    assert rep.run([X, Y])[0].shape == (2, 2)


def test_a_single_array_feeds_a_single_input():
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    np.testing.assert_array_equal(backend.run_model(model, X)[0], np.maximum(X, 0))


def test_the_number_of_inputs_is_checked():
    with pytest.raises(FeedError, match=r"takes 2 inputs \(x, y\), got 1"):
        backend.prepare(added()).run([X])


def test_one_node_runs(device):
    node = helper.make_node("Softmax", ["x"], ["y"], axis=0)
    (y,) = backend.run_node(node, [X], device.upper())
    np.testing.assert_allclose(y.sum(axis=0), [1, 1], rtol=1e-6)


def test_a_node_without_an_optional_input_runs():
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    (y,) = backend.run_node(node, [torch.from_numpy(X), np.float32(1)])
    np.testing.assert_array_equal(y, np.minimum(X, 1))


def test_a_node_means_what_its_opset_says():
    node = helper.make_node("Softmax", ["x"], ["y"])
    cube = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    (new,) = backend.run_node(node, [cube])
    (old,) = backend.run_node(node, [cube], opset_version=11)
    np.testing.assert_allclose(new.sum(axis=-1), np.ones((2, 2)), rtol=1e-6)
    np.testing.assert_allclose(old.sum(axis=(1, 2)), np.ones(2), rtol=1e-6)


def test_a_training_node_runs_with_given_outputs():
    node = helper.make_node("ReluGrad", ["dy", "x"], ["dx"], domain="com.microsoft")
    info = [(np.float32, (2, 2))]
    (dx,) = backend.run_node(node, {"dy": np.ones_like(X), "x": X}, outputs_info=info)
    np.testing.assert_array_equal(dx, X > 0)


def test_a_node_with_too_few_inputs_is_refused():
    with pytest.raises(FeedError, match="node Add takes 2 inputs"):
        backend.run_node(helper.make_node("Add", ["x", "y"], ["z"]), [X])


def test_devices():
    assert backend.supports_device("CPU")
    assert backend.supports_device("CUDA") == torch.cuda.is_available()
    assert backend.supports_device("GPU") == torch.cuda.is_available()
    assert not backend.supports_device("CUDA:99")
    assert not backend.supports_device("ABACUS")
    with pytest.raises(DeviceError, match="unknown device 'ABACUS'"):
        backend.prepare(added(), "ABACUS")


def test_compatible_is_what_has_kernels():
    assert backend.is_compatible(added())
    assert backend.is_compatible(added(), "CUDA")
    assert not backend.is_compatible(added("Mystery", "test"))
    assert not backend.is_compatible(b"not a model")


def test_an_opset_of_the_future_is_not_supported():
    assert backend.is_opset_supported(added()) == (True, "")
    known, reason = backend.is_opset_supported(added(opset=999))
    assert not known
    assert "opset 999" in reason
