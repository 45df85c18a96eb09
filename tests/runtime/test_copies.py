"""Numbers that go from the host to a device, where steps may be recorded."""

import pytest
import torch

from onnxtrain.runtime import copies
from onnxtrain.runtime.capture import CudaGraphs

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_number_is_written_by_the_device(dtype: torch.dtype) -> None:
    """Memory of the host would be read again by each replay."""
    number = torch.tensor([3.14]).to(dtype)
    written = copies.to_device(number, device=torch.device("cpu"))
    assert written.data_ptr() != number.data_ptr()
    torch.testing.assert_close(written, number, rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_recorded_has_its_numbers(dtype: torch.dtype, count: int) -> None:
    numbers = torch.tensor([3.14, 0.0, 7.0][:count]).to(dtype)
    expected, device = numbers.clone(), torch.device("cuda", 0)
    replay, found = CudaGraphs(device).record(
        lambda: [copies.to_device(numbers, device=device)], []
    )
    numbers.zero_()
    replay()
    (written,) = found
    torch.testing.assert_close(written.cpu(), expected, rtol=0, atol=0)
