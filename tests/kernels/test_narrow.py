"""Element types of 2, 4 and 6 bits, and the powers of two."""

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
import torch

from onnxtrain.kernels.dtypes import array_of, tensor_of, to_torch
from onnxtrain.kernels.narrow import WHOLE, convert
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.types import NARROW, DataType

NUMBERS = torch.tensor([-300.0, -8.5, -3.0, -0.3, 0.0, 0.2, 0.75, 1.25, 2.5, 5.0, 7.9, 40.0])


@pytest.mark.parametrize("dtype", sorted(NARROW), ids=lambda dtype: dtype.name)
def test_values_survive_the_way_through_torch(dtype: DataType) -> None:
    array = np.arange(-2, 2).astype(np.float32).astype(dtype.numpy())
    back = array_of(tensor_of(array), dtype)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back.astype(np.float32), array.astype(np.float32))


@pytest.mark.parametrize("dtype", sorted(NARROW - set(WHOLE)), ids=lambda dtype: dtype.name)
def test_short_floats_round_like_ml_dtypes(dtype: DataType) -> None:
    expected = NUMBERS.numpy().astype(dtype.numpy()).astype(np.float32)
    np.testing.assert_array_equal(convert(NUMBERS, dtype).float(), expected)


@pytest.mark.parametrize(("dtype", "bits"), [("INT2", 2), ("UINT2", 2), ("INT4", 4), ("UINT4", 4)])
def test_whole_numbers_wrap_around(dtype: str, bits: int) -> None:
    kind, x = DataType[dtype], torch.arange(-40, 40)
    found = convert(x, kind).long()
    assert torch.equal(found & (2**bits - 1), x & (2**bits - 1))
    assert found.min() == WHOLE[kind][0] and found.max() == WHOLE[kind][1]


POWERS = torch.tensor([0.0, 1.0, 1.4, 1.5, 3.0, 2.0**127, 3e38, torch.inf, torch.nan])


@pytest.mark.parametrize(
    ("saturate", "mode", "expected"),
    [
        (1, "up", [2.0**-127, 1, 2, 2, 4, 2.0**127, 2.0**127, 2.0**127, np.nan]),
        (1, "down", [2.0**-127, 1, 1, 1, 2, 2.0**127, 2.0**127, 2.0**127, np.nan]),
        (0, "nearest", [np.nan, 1, 1, 2, 4, 2.0**127, np.nan, np.nan, np.nan]),
    ],
)
def test_powers_of_two(saturate: int, mode: str, expected: list[float]) -> None:
    found = convert(POWERS, DataType.FLOAT8E8M0, saturate, mode)
    assert found.dtype is to_torch(DataType.FLOAT8E8M0)
    np.testing.assert_array_equal(found.float(), np.array(expected, np.float32))


def test_an_unknown_rounding_is_refused() -> None:
    with pytest.raises(ValueError, match="must be up, down or nearest"):
        convert(POWERS, DataType.FLOAT8E8M0, 1, "sideways")


def test_sessions_take_and_give_numpy_s_narrow_types() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 11, opset_import: ["": 21]> main (int4[4] x) => (uint4[4] y, float[4] z)'
        "{ z = Cast<to=1>(x)  y = Cast<to=21>(z) }"
    )
    x = np.array([-8, -1, 0, 7], ml_dtypes.int4)
    y, z = InferenceSession(model).run(None, {"x": x})
    np.testing.assert_array_equal(z, [-8, -1, 0, 7])
    assert y.dtype == ml_dtypes.uint4
    np.testing.assert_array_equal(y.astype(np.int32), [8, 15, 0, 7])
