"""Tests that a run under a pretended GPU must not call passed; each begins with what becomes of it.

They run in ``test_pretended.py`` alone.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

pytestmark = pytest.mark.gpu


def test_failure_of_devices_that_are_mixed() -> None:
    torch.ones(3, device="cuda") + torch.ones(3)


def test_failure_of_wrong_values() -> None:
    assert torch.ones(3, device="cuda").sum().item() == 4


def test_skipped_memory() -> None:
    assert torch.cuda.memory_allocated() > 0


def test_skipped_pinned_although_nothing_shows() -> None:
    with contextlib.suppress(BaseException):
        torch.ones(3).pin_memory()


def test_skipped_streams_although_it_fails() -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        raise AssertionError


def test_skipped_kernels() -> None:
    x = torch.ones(1, 1, 3, 3, device="cuda")
    torch.ops.aten.cudnn_convolution(x, x, [0, 0], [1, 1], [1, 1], 1, False, False, False)


def test_skipped_kernels_of_a_type() -> None:
    torch.nn.functional.avg_pool3d(torch.ones(1, 2, 2, 2, device="cuda").bfloat16(), 2)


def test_skipped_storage() -> None:
    torch.ones(3, device="cuda").resize_(5)


def test_skipped_storage_of_others() -> None:
    torch.from_dlpack(torch.ones(3, device="cuda"))


def test_skipped_tracing() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        inside = torch.ones(3, device="cuda")
    assert type(inside) is FakeTensor
    torch.ones(3, device="cuda") + inside


def test_skipped_attention() -> None:
    q = torch.ones(1, 1, 8, 8, device="cuda")
    torch.ops.aten._scaled_dot_product_flash_attention(q, q, q, 0.5)


def test_skipped_time() -> None:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    assert first.elapsed_time(last) > 0


def test_skipped_processes() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


@pytest.mark.multi
def test_skipped_processes_that_are_marked() -> None:
    raise AssertionError
