"""Group normalization as the operators hand it to Triton."""

import pytest
import torch

from kernels.fast import drawn, module, near, on_devices
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


@on_devices
@pytest.mark.parametrize("layout", ["first", "last", "last, together"])
@pytest.mark.parametrize("far", [30.0, 300.0])
def test_a_first_pixel_unlike_all_others(
    far: float, layout: str, device: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a corner of padding may be: the deviation is as exact as torch's.

    Tiles are small, since the interpreter adds up their rows one after the other.
    """
    together = module("group_norm_last")
    monkeypatch.setattr(together, "SMALLEST", 1 if "together" in layout else 1 << 30)
    monkeypatch.setattr(together, "TILE", 256)
    monkeypatch.setattr(together, "_cut", together._cut.__wrapped__)
    x = drawn(2, 8, 40, 50, device=device, dtype=dtype)
    x[:, ::4, 0, 0] = far
    if layout != "first":
        x = x.contiguous(memory_format=torch.channels_last)
    w = torch.ones(8, device=device)
    _, *ours = module("group_norm").normalize(x, w, w, 2, 1e-5)
    wide = x.contiguous().float()
    _, *torchs = torch.native_group_norm(wide, w, w, 2, 8, 2000, 2, 1e-5)
    _, *true = torch.native_group_norm(wide.double(), w.double(), w.double(), 2, 8, 2000, 2, 1e-5)
    for one, other, exact in zip(ours, torchs, true, strict=True):
        near(one, other, exact)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("activation", ["none", "swish"])
@pytest.mark.parametrize(
    ("channels", "groups", "sides"),
    [
        (64, 32, (96, 101)),
        (320, 32, (64, 64)),
        (96, 1, (80, 80)),
        (27, 1, (211, 97)),
        (130, 130, (73, 71)),
        (20, 4, (1, 30_001)),
    ],
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
    rows = x.cpu().double().reshape(2, groups, -1)
    torch.testing.assert_close(mean.cpu().double(), rows.mean(-1), rtol=1e-5, atol=1e-5)


def test_groups_of_more_elements_than_32_bits_count() -> None:
    """Means of a group of four channels with 2^30 places each, whose sums are given."""
    scale, channels = torch.tensor([1.0, 2.0, 3.0, 4.0]), 4
    terms, totals, sums = torch.zeros(2, 1), torch.zeros(2, channels), torch.ones(1, 1, 2, channels)
    sums[..., 1, :] = 2.0
    module("group_norm_last")._grad_terms[(1,)](
        *(terms, totals, sums, scale, 1 << 30, 1, 1, channels, 1, 4, 1), num_warps=1
    )
    assert terms.tolist() == [[10 / 2**32], [20 / 2**32]]
    assert totals.tolist() == [[1.0] * 4, [2.0] * 4]


def test_sums_of_many_parts_are_read_some_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One warp adds them up: all of a single sample's at once would be kilobytes for a thread."""
    together = module("group_norm_last")
    monkeypatch.setattr(together, "multiprocessors", lambda device: 132)
    for channels, groups in [(32, 1), (128, 32), (63, 1), (60, 60)]:
        cut = together._cut.__wrapped__(1, channels, 1 << 20, groups, torch.device("cpu"))
        assert cut.parts > 500 and cut.collected[0] * cut.collected[1] <= together.COLLECTED


def test_what_does_not_fit_is_refused() -> None:
    x = torch.ones(2, 6, 3)
    with pytest.raises(ValueError, match="no 4 groups"):
        group_norm.group_normalized(x, x[0, :, 0], x[0, :, 0], num_groups=4)
    with pytest.raises(ValueError, match="scale has shape"):
        group_norm.group_normalized(x, x[0, :4, 0], x[0, :4, 0], num_groups=2)
    with pytest.raises(ValueError, match=r"bias has shape \(1,\), not \[6\]"):
        group_norm.group_normalized(x, x[0, :, 0], x[0, :1, 0], num_groups=2)
    row = x[0, :, 0]
    with pytest.raises(ValueError, match="activation is 'elu', allowed are none, relu, swish"):
        group_norm.group_normalized(x, row, row, num_groups=2, activation="elu")
    with pytest.raises(ValueError, match="with a relu needs its bias"):
        group_norm.group_normalized_grad(
            x, x, row, x[:, :2, 0], x[:, :2, 0], num_groups=2, activation="relu"
        )
