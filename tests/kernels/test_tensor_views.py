"""Operators that only change shapes share the storage of their input instead of copying it."""

from collections.abc import Callable

import pytest
import torch

from onnxtrain.kernels.ms.tensor import irfft
from onnxtrain.kernels.sequence import split_to_sequence
from onnxtrain.kernels.signal import dft, stft
from onnxtrain.kernels.tensor.cast import bit_cast, cast
from onnxtrain.kernels.tensor.concat import split, split_training
from onnxtrain.kernels.tensor.pad import center_crop_pad, pad
from onnxtrain.kernels.tensor.shape import (
    expand,
    flatten,
    identity,
    reshape,
    squeeze,
    transpose,
    unsqueeze,
    view,
)
from onnxtrain.kernels.tensor.slice import slice_
from onnxtrain.types import DataType

VIEWS = {
    "identity": identity,
    "reshape": lambda x: reshape(x, [4, -1]),
    "flatten": lambda x: flatten(x, axis=2),
    "squeeze": lambda x: squeeze(x, [0]),
    "unsqueeze": lambda x: unsqueeze(x, [0, -1]),
    "transpose": lambda x: transpose(x, perm=(0, 2, 1)),
    "expand": lambda x: expand(x, [3, 1, 1]),
    "slice": lambda x: slice_(x, [1], [4], [1], [2]),
    "split": lambda x: split(x, [1, 3], axis=1, wanted=(True, True))[1],
    "split_training": lambda x: split_training(x, [2, 2], axis=1, wanted=(True, True))[1],
    "split_to_sequence": lambda x: split_to_sequence(x, 2, axis=1)[1],
    "view": lambda x: view(x, [4], [2, 4], wanted=(True, True))[1],
    "cast": lambda x: cast(x, to=DataType.FLOAT),
    "bit_cast": lambda x: bit_cast(x, to=DataType.INT32),
    "crop": lambda x: pad(x, [0, -1, 0, 0, -1, -2]),
    "center": lambda x: center_crop_pad(x, [2, 1], axes=(1, 2)),
}


@pytest.mark.parametrize("kernel", VIEWS.values(), ids=VIEWS.keys())
def test_view(kernel) -> None:
    x = torch.arange(12.0).reshape(1, 4, 3)
    assert kernel(x).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_bits_of_floating_point_numbers() -> None:
    x = torch.tensor([1.0, -2.0])
    assert bit_cast(x, to=DataType.INT32).tolist() == [0x3F80_0000, -0x4000_0000]


@pytest.mark.parametrize(
    "transform", [dft, lambda x: irfft(x, signal_ndim=1), lambda x: stft(x, 2, None, 4)]
)
def test_complex_numbers_may_begin_at_an_odd_place(transform: Callable[..., torch.Tensor]) -> None:
    signal = torch.randn(25)
    part = reshape(slice_(signal, [1], [25]), [2, 6, 2])
    assert part.storage_offset() == 1
    torch.testing.assert_close(transform(part), transform(part.clone()))
