"""Group normalization as the operators hand it to Triton."""

import pytest
import torch

from kernels.test_fast import drawn, near, on_devices
from onnxtrain.kernels.nn import group_norm

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": torch.relu,
    "swish": lambda x: x * torch.sigmoid(1.5 * x),
}


@on_devices
@pytest.mark.parametrize("layout", ["first", "last", "last, together"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("channels", "groups", "sides"), [(6, 2, (5, 7)), (8, 8, (3, 3))])
def test_value_and_gradients(
    channels: int,
    groups: int,
    sides: tuple[int, int],
    activation: str,
    layout: str,
    device: str,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With channels as the second axis in memory and as the last, and far from 0."""
    monkeypatch.setattr(group_norm.fast.load("group_norm"), "TILE", 16)
    together = group_norm.fast.load("group_norm_last")
    sizes = {"SMALLEST": 1 if "together" in layout else 1 << 30, "ROW": 4, "TILE": 16}
    for name, size in sizes.items():
        monkeypatch.setattr(together, name, size)
    together._cut.cache_clear()
    monkeypatch.setattr(group_norm, "_is_fast", lambda *tensors: True)
    assert_right(channels, groups, sides, activation, layout != "first", device, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("activation", ["none", "swish"])
@pytest.mark.parametrize(
    ("channels", "groups", "sides"), [(64, 32, (96, 101)), (320, 32, (64, 64)), (96, 1, (80, 80))]
)
def test_images_with_their_channels_last(
    channels: int, groups: int, sides: tuple[int, int], activation: str, dtype: str
) -> None:
    """Groups of a few bytes a place, of which programs take several, and of many."""
    assert_right(channels, groups, sides, activation, True, "cuda", dtype)


def assert_right(
    channels: int,
    groups: int,
    sides: tuple[int, int],
    activation: str,
    last: bool,
    device: str,
    dtype: str,
) -> None:
    x, dy = (drawn(2, channels, *sides, device=device, dtype=dtype) for _ in range(2))
    x, dy = x.flip(1) * 2 + 4, dy
    if last:
        x, dy = (t.contiguous(memory_format=torch.channels_last) for t in (x, dy))
    w, b = drawn(channels, device=device, dtype=dtype), drawn(channels, device=device, dtype=dtype)
    results = {}
    for width in (x.dtype, torch.float64):
        given = [t.detach().to(width).requires_grad_() for t in (x, w, b)]
        y = torch.nn.functional.group_norm(given[0], groups, given[1], given[2])
        y = ACTIVATIONS[activation](y)
        results[width] = [y.detach(), *torch.autograd.grad(y, given, dy.to(width))]
    forms = {"num_groups": groups, "activation": activation, "alpha": 1.5}
    y, mean, inverse = group_norm.group_normalized(x, w, b, **forms)
    states = mean, inverse, None if activation == "none" else b
    ours = [y, *group_norm.group_normalized_grad(dy, x, w, *states, **forms)]
    for one, torchs, true in zip(ours, results[x.dtype], results[torch.float64], strict=True):
        near(one, torchs, true)
    assert ours[0].stride() == ours[1].stride() == x.stride()
    rows = x.double().reshape(2, groups, -1)
    torch.testing.assert_close(mean.double(), rows.mean(-1), rtol=1e-5, atol=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    x = torch.ones(2, 6, 3)
    with pytest.raises(ValueError, match="no 4 groups"):
        group_norm.group_normalized(x, x[0, :, 0], x[0, :, 0], num_groups=4)
    with pytest.raises(ValueError, match="scale has shape"):
        group_norm.group_normalized(x, x[0, :4, 0], x[0, :4, 0], num_groups=2)
    row = x[0, :, 0]
    with pytest.raises(ValueError, match="activation is 'elu', allowed are none, relu, swish"):
        group_norm.group_normalized(x, row, row, num_groups=2, activation="elu")
    with pytest.raises(ValueError, match="with a relu needs its bias"):
        group_norm.group_normalized_grad(
            x, x, row, x[:, :2, 0], x[:, :2, 0], num_groups=2, activation="relu"
        )
