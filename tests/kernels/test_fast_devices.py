"""Which GPUs the Triton kernels serve, and how they fit smaller ones."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.activation.gelu import bias_gelu
from onnxtrain.kernels.devices import capability as capability_of
from onnxtrain.kernels.loss.cross_entropy import softmax_cross_entropy_loss
from onnxtrain.kernels.loss.with_grad import cross_entropy_with_grad
from onnxtrain.kernels.math.chain import elementwise
from onnxtrain.kernels.nn.group_norm import group_normalized, group_normalized_grad
from onnxtrain.kernels.nn.layer_norm import layer_normalization, layer_normalization_grad
from onnxtrain.kernels.nn.rms_norm import (
    simplified_layer_normalization,
    simplified_layer_normalization_grad,
)


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


def _vectors_of(name: str) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """A kernel with data that Triton takes, and what else may have a gradient."""
    x, row, image = torch.randn(64, 1024), torch.ones(1024), torch.randn(2, 8, 64, 64)
    mean, inverse, ones = torch.zeros(64, 1), torch.ones(64, 1), torch.ones(8)
    groups, labels = torch.ones(2, 2), torch.zeros(64, dtype=torch.int64)
    return {
        "layer": (lambda w, b: layer_normalization(x, w, b)[0], [row, row]),
        "layer's gradient": (
            lambda w: layer_normalization_grad(x, x, w, mean, inverse)[0],
            [row],
        ),
        "root mean square": (lambda w: simplified_layer_normalization(x, w)[0], [row]),
        "root mean square's gradient": (
            lambda w: simplified_layer_normalization_grad(x, x, w, inverse)[0],
            [row],
        ),
        "groups": (lambda w, b: group_normalized(image, w, b, num_groups=2)[0], [ones, ones]),
        "groups' gradient": (
            lambda w: group_normalized_grad(image, image, w, groups, groups, num_groups=2)[0],
            [ones],
        ),
        "bias of Gelu": (lambda b: bias_gelu(x, b), [row]),
        "classes": (lambda w: softmax_cross_entropy_loss(x, labels, w)[0], [row]),
        "loss": (lambda dy: cross_entropy_with_grad(x, labels, dy)[0], [torch.ones(())]),
    }[name]


@pytest.mark.parametrize(
    "name",
    [
        "layer",
        "layer's gradient",
        "root mean square",
        "root mean square's gradient",
        "groups",
        "groups' gradient",
        "bias of Gelu",
        "classes",
        "loss",
    ],
)
def test_what_autograd_watches_is_left_to_torch(name: str, gpu: pytest.MonkeyPatch) -> None:
    """Also where only a vector beside the data has a gradient."""
    gpu.setattr(fast, "serves", lambda index: True)
    run, vectors = _vectors_of(name)
    for watched in range(len(vectors)):
        given = [t.clone().requires_grad_(n == watched) for n, t in enumerate(vectors)]
        assert run(*given).requires_grad


def test_shared_memory_is_that_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    launch = fast.load("common.launch")
    small = SimpleNamespace(shared_memory_per_block_optin=101376)
    for found, expected in [(small, 101376), (SimpleNamespace(), launch.SHARED)]:
        launch.shared_memory.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, found=found: found)
        assert launch.shared_memory(torch.device("cuda", 0)) == expected
    launch.shared_memory.cache_clear()
