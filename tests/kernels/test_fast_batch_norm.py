"""Batch normalization by Triton against torch's, on images with their channels last."""

from __future__ import annotations

import pytest
import torch

from onnxtrain.kernels import fast
from onnxtrain.kernels.nn import batch_norm

pytest.importorskip("triton", reason="Triton is not installed on this platform")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(3, 5, 7, 6), (2, 64, 9, 5), (4, 130, 3, 3)]


@pytest.fixture(params=SHAPES, ids=str)
def images(request) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(0)
    shape = request.param
    x, dy = (torch.randn(shape, generator=random) for _ in range(2))
    x = 40 + 3 * x  # a large mean must not cost precision
    scale, shift = (torch.rand(shape[1], generator=random) + 0.5 for _ in range(2))
    last = {"memory_format": torch.channels_last}
    return x.to(DEVICE, **last), dy.to(DEVICE, **last), scale.to(DEVICE), shift.to(DEVICE)


def _truth(x, dy, scale, shift):
    x, dy, scale, shift = (t.double().cpu() for t in (x, dy, scale, shift))
    y, mean, var, inverse = batch_norm.train(x, scale, shift, 1e-5)
    grads = batch_norm.batch_normalization_grad(dy, x, scale, mean, inverse, epsilon=1e-5)
    return (y, mean, var, inverse), grads


def _near(found, true, tolerance: float) -> None:
    for one, other in zip(found, true, strict=True):
        assert (one.double().cpu() - other).abs().max() < tolerance * other.abs().max()


def test_float32(images) -> None:
    quick = fast.load("batch_norm")
    x, dy, scale, shift = images
    forward, backward = _truth(*images)
    found = quick.train(x, scale, shift, 1e-5)
    _near(found, forward, 1e-5)
    assert found[0].is_contiguous(memory_format=torch.channels_last)
    _near(quick.grad(dy, x, scale, found[1], found[3]), backward, 1e-4)


def test_float16(images) -> None:
    quick = fast.load("batch_norm")
    x, dy, scale, shift = images
    x, dy = (x - 40).half(), dy.half()
    forward, backward = _truth(x, dy, scale, shift)
    found = quick.train(x, scale, shift, 1e-5)
    _near(found, forward, 2e-3)
    _near(quick.grad(dy, x, scale, found[1], found[3]), backward, 4e-3)


def test_a_relu_behind(images) -> None:
    quick = fast.load("batch_norm")
    x, dy, scale, shift = images
    forward, _ = _truth(*images)
    y, mean, _, inverse = quick.train(x, scale, shift, 1e-5, relu=True)
    _near([y], [forward[0].relu()], 1e-5)
    held = torch.where(forward[0] > 0, dy.cpu().double(), 0.0)
    _, backward = _truth(x, held, scale, shift)
    _near(quick.grad(dy, x, scale, mean, inverse, shift), backward, 1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_kernel_of_the_operator_takes_it(dtype: torch.dtype) -> None:
    last = {"memory_format": torch.channels_last}
    # a mean of about 0 would be compared with its own rounding
    x = (torch.randn(16, 64, 64, 64, device="cuda") + 2).to(dtype, **last)
    dy = torch.randn_like(x)
    scale = torch.rand(64, device="cuda") + 0.5
    shift = torch.rand(64, device="cuda")
    assert batch_norm.fast_images(x, dy, scale, shift) is not None
    forward, backward = _truth(x, dy, scale, shift)
    tolerance = 1e-2 if dtype is torch.bfloat16 else 1e-5
    found = batch_norm.train(x, scale, shift, 1e-5)
    _near(found, forward, tolerance)
    grads = batch_norm.batch_normalization_grad(dy, x, scale, found[1], found[3], epsilon=1e-5)
    _near(grads, backward, tolerance)
