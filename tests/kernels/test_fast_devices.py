"""Which GPUs the Triton kernels serve, and how they fit smaller ones."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from onnxtrain.kernels import fast
from onnxtrain.kernels.devices import capability as capability_of
from onnxtrain.kernels.math.chain import elementwise


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Tensors that say that they are on a GPU, with Triton installed."""
    capability_of.cache_clear()
    monkeypatch.setattr(fast, "installed", lambda: True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: 0)
    yield monkeypatch
    capability_of.cache_clear()


@pytest.mark.parametrize(("capability", "served"), [((7, 5), False), ((8, 0), True)])
def test_old_gpus_run_portable_kernels(
    gpu: pytest.MonkeyPatch, capability: tuple[int, int], served: bool
) -> None:
    gpu.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    x = torch.ones(4, 8)
    assert fast.ready(x, smallest=1) is served
    assert fast.ready_lists([x], [x]) is served
    assert fast.ready_together([x]) is served


def test_gpus_of_others_run_portable_kernels(gpu: pytest.MonkeyPatch) -> None:
    gpu.setattr(torch.cuda, "get_device_capability", lambda index: (9, 4))
    gpu.setattr(torch.version, "hip", "6.4")
    assert not fast.ready(torch.ones(4, 8), smallest=1)


def test_a_chain_needs_no_triton(gpu: pytest.MonkeyPatch) -> None:
    """On Windows, for example, a GPU may be there without it."""
    gpu.setattr(fast, "installed", lambda: False)
    gpu.setattr(fast, "load", lambda name: pytest.fail(f"{name} was imported"))
    x = torch.tensor([1.0, -2.0])
    assert elementwise(x, x, steps="Add 0 1; Relu 2").tolist() == [2.0, 0.0]


def test_shared_memory_is_that_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    launch = fast.load("launch")
    small = SimpleNamespace(shared_memory_per_block_optin=101376)
    for found, expected in [(small, 101376), (SimpleNamespace(), launch.SHARED)]:
        launch.shared_memory.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, found=found: found)
        assert launch.shared_memory(torch.device("cuda", 0)) == expected
    launch.shared_memory.cache_clear()
