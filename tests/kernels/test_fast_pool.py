"""Gradients of pools by Triton beside the portable ones."""

import pytest
import torch
from torch import Tensor

from kernels.fast import drawn, module, on_devices
from onnxtrain.kernels.nn import max_pool, pool

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
    y, places = max_pool.max_pool(x, **options, wanted=(True, True))
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


def pooled(
    shape: tuple[int, ...], kernel: tuple[int, int], pads: tuple[int, int], like: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What a pool of every other place hands back, where it came from, and both true gradients."""
    x = drawn(*shape, device="cpu", dtype="float64").requires_grad_()
    most, places = torch.nn.functional.max_pool2d(x, kernel, 2, pads, return_indices=True)
    planes = torch.arange(shape[0] * shape[1]) * (shape[2] * shape[3])
    dy = drawn(*most.shape, device="cpu", dtype="float64").to(like.dtype)
    mean = torch.nn.functional.avg_pool2d(x, kernel, 2, pads)
    true = [torch.autograd.grad(y, x, dy.double())[0] for y in (most, mean)]
    places = places + planes.reshape(*shape[:2], 1, 1)
    return dy.to(like.device), places.to(like.device), true[0], true[1]


@on_devices
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(
    ("few", "shape", "kernel", "pads"),
    [
        pytest.param(0, (1, 2, 8, 12), (3, 3), (1, 1), id="whole squares"),
        pytest.param(0, (1, 2, 10, 8), (3, 2), (0, 0), id="windows end before the image"),
        pytest.param(0, (1, 3, 9, 7), (3, 3), (1, 1), id="odd sides"),
        pytest.param(1, (1, 3, 9, 7), (3, 3), (1, 1), id="few squares"),
        pytest.param(0, (1, 2, 7, 6), (8, 8), (4, 4), id="sixteen windows"),
        pytest.param(0, (1, 2, 5, 4), (9, 9), (4, 4), id="too many windows"),
        pytest.param(0, (1, 300, 2, 4), (1, 3), (0, 1), id="many channels, gaps"),
    ],
)
def test_squares_of_two_by_two(
    device: str,
    dtype: str,
    layout: torch.memory_format,
    few: int,
    shape: tuple[int, ...],
    kernel: tuple[int, int],
    pads: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module("pool_squares"), "FEW", few << 20)
    like = drawn(1, device=device, dtype=dtype)
    dy, places, most, mean = pooled(shape, kernel, pads, like)
    dy = dy.to(memory_format=layout)
    quick, options = module("pool"), (shape, kernel, (2, 2), pads)
    found = quick.max_pool_grad(dy, places, *options)
    torch.testing.assert_close(found.cpu(), most.to(like.dtype))
    found = quick.average_pool_grad(dy, *options, True)
    torch.testing.assert_close(found.cpu(), mean.to(like.dtype))


def test_more_images_than_a_launch_has_programs_for() -> None:
    takes = module("pool_squares").takes
    assert takes((65535, 1, 4, 4), (3, 3), (2, 2))
    assert not takes((65536, 1, 4, 4), (3, 3), (2, 2))
    assert not takes((1, 1, 131072, 4), (3, 3), (2, 2))
    assert not takes((1, 1, 4, 4), (3, 3), (2, 1))


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
    y, places = max_pool.max_pool(x, **options, wanted=(True, True))
    dy = torch.randn_like(y)
    shapes = {"shape": tuple(x.shape), "out_shape": tuple(x.shape)}
    found = max_pool.max_pool_grad(dy, places, **shapes, **options, deterministic=deterministic)
    assert found.stride() == x.stride()
    monkeypatch.setattr(pool.fast, "ready", lambda *_, **__: False)
    plain = max_pool.max_pool_grad(dy, places, **shapes, **options, deterministic=deterministic)
    torch.testing.assert_close(found, plain)
