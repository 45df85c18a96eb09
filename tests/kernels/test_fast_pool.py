"""Gradients of pools by Triton beside the portable ones."""

import pytest
import torch

from kernels.test_fast import drawn, module, on_devices
from onnxtrain.kernels.nn import pool

WINDOWS = {
    "overlapping": {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)},
    "uneven": {"kernel_shape": (2, 3), "strides": (1, 2), "pads": (0, 1, 0, 1)},
    "dilated": {
        "kernel_shape": (3, 2),
        "strides": (2, 1),
        "pads": (1, 1, 1, 1),
        "dilations": (2, 1),
    },
    "gaps": {"kernel_shape": (2, 2), "strides": (3, 3), "pads": (0, 0, 0, 0)},
}


@on_devices
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("kind", WINDOWS)
def test_each_element_adds_up_its_windows(
    device: str, dtype: str, layout: torch.memory_format, kind: str
) -> None:
    options = WINDOWS[kind]
    x = drawn(2, 3, 11, 9, device=device, dtype=dtype).to(memory_format=layout)
    y, places = pool.max_pool(x, **options, wanted=(True, True))
    assert places is not None
    dy = drawn(*y.shape, device=device, dtype=dtype).to(memory_format=layout)
    window = pool.resolve(
        (11, 9),
        options["kernel_shape"],
        options["strides"],
        options.get("dilations"),
        options["pads"],
        "NOTSET",
    )
    found = module("pool").max_pool_grad(
        dy, places, x.shape, window.extent, window.strides, window.begin
    )
    true = torch.zeros(x.numel(), dtype=torch.float64, device=device)
    true.index_add_(0, places.reshape(-1), dy.double().reshape(-1))
    assert found.stride() == x.stride() and found.dtype == x.dtype
    torch.testing.assert_close(found, true.view(x.shape).to(x.dtype))


MEANS = {
    "overlapping": ((3, 3), (2, 2), (1, 1), 0),
    "hanging over": ((3, 2), (2, 3), (1, 0), 1),
    "uneven": ((2, 3), (1, 2), (0, 1), 0),
    "gaps": ((2, 2), (3, 3), (0, 0), 0),
}


@on_devices
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", MEANS)
def test_each_element_has_its_share_of_means(
    device: str, dtype: str, layout: torch.memory_format, padded: bool, kind: str
) -> None:
    kernel, strides, pads, ceil_mode = MEANS[kind]
    x = drawn(2, 3, 12, 9, device=device, dtype=dtype).to(memory_format=layout)
    options = (kernel, strides, pads, bool(ceil_mode), padded)
    # not on a GPU, where torch's gradient is wrong for channels last with padding
    wide = x.double().cpu().contiguous().requires_grad_()
    y = torch.nn.functional.avg_pool2d(wide, *options)
    dy = drawn(*y.shape, device=device, dtype=dtype).to(memory_format=layout)
    (true,) = torch.autograd.grad(y, wide, dy.double().cpu())
    found = module("pool").average_pool_grad(dy, tuple(x.shape), kernel, strides, pads, padded)
    assert found.stride() == x.stride() and found.dtype == x.dtype
    torch.testing.assert_close(found.cpu(), true.to(x.dtype))


@pytest.mark.gpu
def test_the_operator_takes_means(monkeypatch: pytest.MonkeyPatch) -> None:
    dy = torch.randn(4, 8, 20, 20, device="cuda").to(memory_format=torch.channels_last)
    options = WINDOWS["overlapping"]
    shapes = {"shape": (4, 8, 40, 40), "out_shape": (4, 8, 40, 40)}
    found = pool.average_pool_grad(dy, **shapes, **options)
    monkeypatch.setattr(pool.fast, "ready", lambda *_, **__: False)
    torch.testing.assert_close(found, pool.average_pool_grad(dy, **shapes, **options))


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_operator_takes_it(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 8, 40, 40, device="cuda").to(memory_format=torch.channels_last)
    options = WINDOWS["overlapping"]
    y, places = pool.max_pool(x, **options, wanted=(True, True))
    dy = torch.randn_like(y)
    shapes = {"shape": tuple(x.shape), "out_shape": tuple(x.shape)}
    found = pool.max_pool_grad(dy, places, **shapes, **options, deterministic=deterministic)
    assert found.stride() == x.stride()
    monkeypatch.setattr(pool.fast, "ready", lambda *_, **__: False)
    plain = pool.max_pool_grad(dy, places, **shapes, **options, deterministic=deterministic)
    torch.testing.assert_close(found, plain)
