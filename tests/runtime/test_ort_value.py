import numpy as np
import pytest
import torch

from onnxtrain.errors import FeedError
from onnxtrain.runtime.ort_value import OrtValue, device_of


def test_an_array_is_wrapped_over_its_own_memory() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    value = OrtValue.ortvalue_from_numpy(array)
    assert value.data_ptr() == array.ctypes.data
    assert value.numpy().ctypes.data == array.ctypes.data
    assert value.shape() == [2, 3]
    assert value.data_type() == "tensor(float)"
    assert value.element_type() == 1
    assert value.device_name() == "cpu"
    assert value.has_value() and value.is_tensor() and not value.is_tensor_sequence()


@pytest.mark.parametrize("element_type", [np.int64, np.dtype("int64"), 7])
def test_a_value_can_be_made_of_a_shape_and_a_type(element_type: object) -> None:
    value = OrtValue.ortvalue_from_shape_and_type([2, 0], element_type)
    assert value.torch().dtype == torch.int64 and value.shape() == [2, 0]


def test_a_value_is_unwrapped_and_wrapped_without_a_copy() -> None:
    value = OrtValue(torch.arange(4.0))
    inner = value._ortvalue
    assert inner.numpy().tolist() == [0, 1, 2, 3]
    assert OrtValue(inner).data_ptr() == value.data_ptr()
    assert OrtValue(OrtValue([torch.ones(2)])).is_tensor_sequence()


def test_values_of_onnxruntime_are_wrapped_without_a_copy() -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="wraps its values")
    for array in (np.arange(3, dtype=np.float32), np.array([True, False])):
        other = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        for given in (other, other._ortvalue):
            value = OrtValue(given)
            assert value.data_ptr() == other.data_ptr()
            assert value.data_type() == other.data_type()
            np.testing.assert_array_equal(value.numpy(), array)


def test_dlpack_goes_in_and_out_without_a_copy() -> None:
    tensor = torch.arange(4.0)
    value = OrtValue.from_dlpack(tensor)
    assert value.data_ptr() == tensor.data_ptr()
    assert torch.from_dlpack(value).data_ptr() == tensor.data_ptr()
    assert torch.utils.dlpack.from_dlpack(value.to_dlpack()).data_ptr() == tensor.data_ptr()
    assert np.from_dlpack(value).ctypes.data == tensor.data_ptr()


def test_booleans_travel_as_bytes() -> None:
    value = OrtValue.from_dlpack(torch.tensor([0, 1], dtype=torch.uint8), is_bool_tensor=True)
    assert value.torch().dtype == torch.bool and value.torch().tolist() == [False, True]


def test_a_sequence_is_no_tensor() -> None:
    value = OrtValue([torch.ones(2, dtype=torch.int64)])
    assert value.is_tensor_sequence() and value.data_type() == "seq(tensor(int64))"
    assert [a.tolist() for a in value.numpy()] == [[1, 1]]
    with pytest.raises(TypeError, match="the value is a sequence of tensors"):
        value.torch()


def test_the_content_can_be_overwritten_in_place() -> None:
    value = OrtValue(torch.zeros(2))
    where = value.data_ptr()
    value.update_inplace(np.array([1, 2], np.float32))
    assert value.torch().tolist() == [1, 2] and value.data_ptr() == where


@pytest.mark.parametrize("array", [np.ones(1, np.float32), np.ones(2), np.ones((1, 2), np.float32)])
def test_what_overwrites_has_the_same_type_and_shape(array: np.ndarray) -> None:
    value = OrtValue(torch.zeros(2))
    with pytest.raises(FeedError, match=r"into a value of torch.float32 \[2\]"):
        value.update_inplace(array)
    assert value.torch().tolist() == [0, 0]


def test_devices_are_named_as_onnxruntime_names_them() -> None:
    assert device_of("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match=r"unknown device 'tpu'\n  have  cpu, cuda, cuda:<index>"):
        device_of("tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a CUDA device")
def test_a_missing_device_is_refused() -> None:
    with pytest.raises(ValueError, match="device 'cuda' is not available"):
        OrtValue.ortvalue_from_numpy(np.ones(2), "cuda")


@pytest.mark.gpu
def test_values_on_a_device_stay_there() -> None:
    value = OrtValue.ortvalue_from_numpy(np.ones(2, np.float32), "cuda")
    assert value.device_name() == "cuda" and value.numpy().tolist() == [1, 1]
    with pytest.raises(ValueError, match="is not there"):
        device_of("cuda:99")


def test_values_have_no_gaps() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    value = OrtValue.ortvalue_from_numpy(array)
    assert value.numpy().flags.c_contiguous and value.numpy().tolist() == array.tolist()


def test_bits_are_read_as_another_type() -> None:
    array = np.array([0x3F80, 0xC000], np.uint16)
    value = OrtValue.ortvalue_from_numpy_with_onnx_type(array, 16)
    assert value.data_type() == "tensor(bfloat16)" and value.torch().tolist() == [1, -2]
    assert value.data_ptr() == array.ctypes.data and value.tensor_size_in_bytes() == 4
    with pytest.raises(FeedError, match="elements of 2 bytes as float, which has 4"):
        OrtValue.ortvalue_from_numpy_with_onnx_type(array, 1)


def test_a_value_is_an_array_for_numpy() -> None:
    value = OrtValue(torch.tensor([1.5, 2.5]))
    assert np.asarray(value).ctypes.data == value.data_ptr()
    assert np.array(value).ctypes.data != value.data_ptr()
    assert np.asarray(value, dtype=np.int64).tolist() == [1, 2]
    with pytest.raises(ValueError, match="cannot show float32 as int64 without a copy"):
        np.array(value, dtype=np.int64, copy=False)
    assert not value.is_sparse_tensor()


def test_a_value_overwrites_another() -> None:
    value = OrtValue(torch.zeros(2))
    value.update_inplace(OrtValue(torch.ones(2)))
    assert value.torch().tolist() == [1, 1]
    with pytest.raises(TypeError, match="cannot write a list"):
        value.update_inplace([1, 2])  # type: ignore[arg-type]


def test_what_no_value_can_be_made_of() -> None:
    with pytest.raises(FeedError, match="an OrtValue holds numbers, not text"):
        OrtValue.ortvalue_from_numpy(np.array(["a"]))
    with pytest.raises(FeedError, match="cannot take an array of datetime64"):
        OrtValue.ortvalue_from_numpy(np.zeros(1, "datetime64[s]"))
    with pytest.raises(FeedError, match=r"memory cannot have the shape \[-2\]"):
        OrtValue.ortvalue_from_shape_and_type([-2])
    with pytest.raises(FeedError, match="there are no tensors of element type 77"):
        OrtValue.ortvalue_from_shape_and_type([2], 77)
