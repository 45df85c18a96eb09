import numpy as np
import onnx
import pytest
import torch

from onnxtrain import InferenceSession, OrtValue
from onnxtrain.errors import FeedError

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
double_it (float[n] x) => (float[n] y, float[n] z) { y = Add(x, x)  z = Neg(x) }"""


@pytest.fixture
def session() -> InferenceSession:
    return InferenceSession(onnx.parser.parse_model(MODEL))


def test_bound_memory_is_read_and_written(session):
    x, y = torch.arange(3.0), torch.zeros(3)
    binding = session.io_binding()
    binding.bind_torch_input("x", x)
    binding.bind_ortvalue_output("y", OrtValue(y))
    binding.bind_output("z")
    session.run_with_iobinding(binding)
    assert y.tolist() == [0, 2, 4]
    first, second = binding.get_outputs()
    assert first.data_ptr() == y.data_ptr()
    assert second.numpy().tolist() == [0, -1, -2]
    x.add_(1)
    session.run_with_iobinding(binding)
    assert y.tolist() == [2, 4, 6]


def test_numpy_in_and_all_outputs_by_default(session):
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.ones(2, np.float32))
    session.run_with_iobinding(binding)
    assert [a.tolist() for a in binding.copy_outputs_to_cpu()] == [[2, 2], [-1, -1]]


def test_what_is_bound_can_be_forgotten(session):
    binding, y = session.io_binding(), torch.zeros(2)
    binding.bind_cpu_input("x", np.ones(2, np.float32))
    binding.bind_ortvalue_output("y", OrtValue(y))
    assert binding.get_inputs() == ["x"]
    binding.clear_binding_outputs()
    session.run_with_iobinding(binding)
    assert len(binding.get_outputs()) == 2 and not y.any()
    binding.clear_binding_inputs()
    assert binding.get_inputs() == []
    with pytest.raises(FeedError, match="no value for input 'x'"):
        session.run_with_iobinding(binding)


@pytest.mark.parametrize("memory", [torch.zeros(3), torch.zeros(2, dtype=torch.float64)])
def test_memory_that_does_not_fit_is_refused(session, memory):
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.ones(2, np.float32))
    binding.bind_ortvalue_output("y", OrtValue(memory))
    with pytest.raises(FeedError, match="output 'y'"):
        session.run_with_iobinding(binding)


def test_memory_is_bound_by_its_address(session):
    x, y = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, [3], x.ctypes.data)
    binding.bind_output("y", "cpu", 0, onnx.TensorProto.FLOAT, (3,), y.ctypes.data)
    for start in (0, 5):
        x[:] = start
        session.run_with_iobinding(binding)
        assert y.tolist() == [2 * start] * 3
    assert binding.get_outputs()[0].data_ptr() == y.ctypes.data
    binding.synchronize_inputs()
    binding.synchronize_outputs()


@pytest.mark.parametrize("kind", ["bool", "int8", "uint16", "float64", "complex64", 16, 17])
def test_memory_of_every_type_is_bound(kind):
    number = kind if isinstance(kind, int) else onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    info = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [info("x", number, [2])], [info("y", number, [2])])
    session = InferenceSession(onnx.helper.make_model(graph))
    size = OrtValue.ortvalue_from_shape_and_type([2], number).tensor_size_in_bytes()
    x, y = np.array([1, 0] * (size // 2), np.uint8), np.zeros(size, np.uint8)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, kind, [2], x.ctypes.data)
    binding.bind_output("y", "cpu", 0, kind, [2], y.ctypes.data)
    session.run_with_iobinding(binding)
    assert y.tolist() == x.tolist()


def test_empty_memory_needs_no_address(session):
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, [0], 0)
    binding.bind_output("y", "cpu", 0, np.float32, [0], 0)
    session.run_with_iobinding(binding)
    assert binding.copy_outputs_to_cpu()[0].shape == (0,)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((np.float32, [2], 0), "there is no memory of shape .2. at address 0"),
        ((np.float32, [2], None), "at address None"),
        ((np.float32, [-1], 8), "memory cannot have the shape"),
        ((np.str_, [1], 8), "there are no tensors of element type"),
        ((onnx.TensorProto.STRING, [1], 8), "there are no tensors of element type 8"),
        ((99, [1], 8), "there are no tensors of element type 99"),
        ((onnx.TensorProto.INT4, [2], 8), "cannot use memory of int4: its elements are packed"),
    ],
)
def test_memory_that_cannot_be_bound(session, arguments, said):
    with pytest.raises(FeedError, match=said):
        session.io_binding().bind_input("x", "cpu", 0, *arguments)


def test_memory_for_an_output_has_a_type_and_a_shape(session):
    with pytest.raises(FeedError, match="memory for output 'y' needs an element type and a shape"):
        session.io_binding().bind_output("y", buffer_ptr=8)


def test_only_names_of_the_model_are_bound(session):
    binding = session.io_binding()
    with pytest.raises(FeedError, match="the model has no input 'q'\n  inputs  x"):
        binding.bind_cpu_input("q", np.ones(1, np.float32))
    with pytest.raises(FeedError, match="the model has no output 'q'\n  outputs  y, z"):
        binding.bind_output("q")


def test_a_sequence_is_not_bound_to_memory():
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n] x) => (seq(float[n]) s) { s = SequenceConstruct(x) }"""
    session = InferenceSession(onnx.parser.parse_model(text))
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.ones(1, np.float32))
    binding.bind_output("s")
    session.run_with_iobinding(binding)
    assert binding.get_outputs()[0].is_tensor_sequence()
    binding.bind_ortvalue_output("s", OrtValue(torch.ones(1)))
    with pytest.raises(FeedError, match="output 's' is no tensor of numbers"):
        session.run_with_iobinding(binding)


@pytest.mark.gpu
def test_memory_of_a_device_is_bound_by_its_address():
    session = InferenceSession(onnx.parser.parse_model(MODEL), providers=["CUDAExecutionProvider"])
    x, y = torch.arange(3.0, device="cuda"), torch.zeros(3, device="cuda")
    binding = session.io_binding()
    binding.bind_input("x", "cuda", 0, np.float32, [3], x.data_ptr())
    binding.bind_output("y", "cuda", 0, np.float32, [3], y.data_ptr())
    binding.bind_output("z")
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    assert y.tolist() == [0, 2, 4]
    assert [value.device_name() for value in binding.get_outputs()] == ["cuda", "cpu"]
