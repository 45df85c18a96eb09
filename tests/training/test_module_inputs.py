"""What programs for onnxruntime hand to a Module: its own values, and buffers of every kind."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxtrain import OrtValue
from onnxtrain.api import Module
from onnxtrain.errors import CheckpointError, ParameterError
from training.small import batch_of, load_module, mlp, model_of, normal, write_artifacts

X, LABELS = batch_of().values()


@pytest.fixture
def module(folder):
    return load_module(folder)


def theirs(*arrays: np.ndarray) -> list[onnxruntime.OrtValue]:
    return [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in arrays]


def test_values_of_onnxruntime_give_values(module):
    expected = module(X, LABELS)
    for given in (theirs(X, LABELS), [v._ortvalue for v in theirs(X, LABELS)]):
        results = module(*given)
        assert all(isinstance(value, OrtValue) for value in results)
        for value, array in zip(results, expected, strict=True):
            np.testing.assert_array_equal(value.numpy(), array)


def test_truth_values_of_onnxruntime_are_taken(tmp_path):
    model = model_of(
        """(float[N,4] x, bool[N,1] mask) => (float[N,3] y) {
            kept = Cast<to=1>(mask)
            z = Mul(x, kept)
            y = MatMul(z, w)
        }""",
        {"w": normal(4, 3)},
    )
    options = {"requires_grad": ["w"], "frozen_params": None, "additional_output_names": None}
    module = load_module(write_artifacts(tmp_path, model, **options))
    mask = X[:, :1] > 0
    loss = module(*theirs(X, mask, LABELS))
    assert loss.numpy() == module(X, mask, LABELS)


def test_buffers_of_every_kind_are_copied(module):
    flat = module.get_contiguous_parameters(trainable_only=True).numpy()
    [value] = theirs(flat * 2)
    for factor, buffer in ((2, value), (2, value._ortvalue), (3, flat * 3), (1, flat.tolist())):
        module.copy_buffer_to_parameters(buffer)
        now = module.get_contiguous_parameters(trainable_only=True).numpy()
        np.testing.assert_array_equal(now, flat * factor)


@pytest.mark.parametrize("buffer", [None, "text", np.zeros(40, np.complex64), OrtValue([])])
def test_what_is_no_buffer_is_refused(module, buffer):
    before = module.get_contiguous_parameters().numpy()
    with pytest.raises(ParameterError, match="cannot copy"):
        module.copy_buffer_to_parameters(buffer)
    np.testing.assert_array_equal(module.get_contiguous_parameters().numpy(), before)


def test_an_evaluation_model_of_another_model_is_refused(folder, module, tmp_path):
    wider = mlp()
    for tensor in wider.graph.initializer:
        shape = [6 if size == 5 else size for size in tensor.dims]
        tensor.CopyFrom(onnx.numpy_helper.from_array(normal(*shape), tensor.name))
    other = write_artifacts(tmp_path, wider)
    told = r"'fc1.weight' has shape \[5, 4\], the evaluation model declares \[6, 4\]"
    with pytest.raises(CheckpointError, match=told):
        Module(folder / "training_model.onnx", module.state, other / "eval_model.onnx")
