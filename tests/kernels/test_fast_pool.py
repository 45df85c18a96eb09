"""The gradient of MaxPool by Triton beside the portable one."""

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
