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


def test_memory_that_does_not_fit_is_refused(session):
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.ones(2, np.float32))
    binding.bind_ortvalue_output("y", OrtValue(torch.zeros(3)))
    with pytest.raises(FeedError, match="output 'y'"):
        session.run_with_iobinding(binding)
