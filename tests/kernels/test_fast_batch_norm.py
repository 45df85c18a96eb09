"""Batch normalization by Triton against torch's, on images with their channels first or last."""

from __future__ import annotations

import functools

import pytest
import torch

from onnxtrain.kernels import fast
from onnxtrain.kernels.nn import batch_norm

pytest.importorskip("triton", reason="Triton is not installed on this platform")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# clusters, which hold the last one, are not interpreted
SHAPES = [(4, 70, 3, 3), (3, 12, 4, 8), pytest.param((16, 70, 9, 9), marks=pytest.mark.gpu)]
LAYOUTS = {"first": torch.contiguous_format, "last": torch.channels_last}


@pytest.fixture(params=LAYOUTS)
def layout(request) -> torch.memory_format:
    return LAYOUTS[request.param]


@pytest.fixture(params=["held", "in parts"])
def way(request, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether one program or one cluster holds a channel."""
    if request.param == "in parts":
        monkeypatch.setattr(fast.load("batch_norm_few"), "MOST", 0)
        monkeypatch.setattr(fast.load("batch_norm_clusters"), "ALL", 0)
    return request.param


@pytest.fixture(params=SHAPES, ids=str)
def images(request, layout: torch.memory_format, way: str) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(0)
    shape = request.param
    if layout is torch.contiguous_format:  # each channel is a program of its own
        shape = (shape[0], min(shape[1], 12), *shape[2:])
    x, dy = (torch.randn(shape, generator=random) for _ in range(2))
    x = 40 + 3 * x  # a large mean must not cost precision
    scale, shift = (torch.rand(shape[1], generator=random) + 0.5 for _ in range(2))
    x, dy = (t.to(DEVICE, memory_format=layout) for t in (x, dy))
    return x, dy, scale.to(DEVICE), shift.to(DEVICE)


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
    assert found[0].stride() == x.stride()
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


def test_a_shortcut_and_a_gradient_that_lie_otherwise(images) -> None:
    quick = fast.load("batch_norm")
    x, dy, scale, shift = images
    last = x.is_contiguous(memory_format=torch.channels_last)
    other = torch.contiguous_format if last else torch.channels_last
    forward, backward = _truth(*images)
    more = dy.contiguous(memory_format=other)
    found = quick.train(x, scale, shift, 1e-5, relu=True, residual=more)
    _near(found[:1], [(forward[0] + dy.double().cpu()).relu()], 1e-5)
    _near(quick.grad(more, x, scale, found[1], found[3]), backward, 1e-4)


def test_running_statistics_move(images) -> None:
    quick = fast.load("batch_norm")
    x, _, scale, shift = images
    old = torch.rand_like(scale), torch.rand_like(scale)
    moved = quick.Running(old[0].clone(), old[1].clone(), 0.75, 1.5)
    _, mean, variance, _ = quick.train(x, scale, shift, 1e-5, running=moved)
    torch.testing.assert_close(moved.mean, old[0] * 0.75 + mean * 0.25)
    torch.testing.assert_close(moved.variance, old[1] * 0.75 + variance * 1.5 * 0.25)


@pytest.mark.parametrize("shape", [(40, 6), (4, 6, 10), (2, 6, 3, 4, 5)], ids=str)
def test_other_numbers_of_axes(shape: tuple[int, ...], way: str) -> None:
    quick = fast.load("batch_norm")
    x, dy = (torch.randn(shape, device=DEVICE) for _ in range(2))
    scale, shift = (torch.rand(6, device=DEVICE) + 0.5 for _ in range(2))
    forward, backward = _truth(x, dy, scale, shift)
    found = quick.train(x, scale, shift, 1e-5)
    _near(found[:1], forward[:1], 1e-5)
    _near(quick.grad(dy, x, scale, found[1], found[3]), backward, 1e-4)


@pytest.mark.parametrize("channels", [64, 96])
def test_programs_that_sum_several_tiles(
    channels: int, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, last, planes = map(fast.load, ("batch_norm", "batch_norm_last", "batch_norm_planes"))
    monkeypatch.setattr(fast.load("batch_norm_few"), "MOST", 0)
    monkeypatch.setattr(last, "PROGRAMS", 1)
    monkeypatch.setattr(last, "_grid", last._grid.__wrapped__)
    monkeypatch.setattr(planes, "LAUNCHES", {4: planes.Launch(64, 4, 1, 3)})
    shape = (3, channels if layout is torch.channels_last else channels // 32, 11, 13)
    x, dy = (torch.randn(shape, device=DEVICE).to(memory_format=layout) for _ in range(2))
    scale, shift = (torch.rand(shape[1], device=DEVICE) + 0.5 for _ in range(2))
    forward, backward = _truth(x, dy, scale, shift)
    found = quick.train(x, scale, shift, 1e-5)
    _near(found[:1], forward[:1], 1e-5)
    _near(quick.grad(dy, x, scale, found[1], found[3]), backward, 1e-4)


def test_a_first_element_far_away_costs_nothing(layout: torch.memory_format, way: str) -> None:
    """As a corner of padding may be: 64 roundings, where it would cost four thousand."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(24, 3, 8, 8, generator=random).to(DEVICE, memory_format=layout)
    x[0, :, 0, 0] = 1e3
    quick, ones = fast.load("batch_norm"), torch.ones(3, device=DEVICE)
    found = quick.train(x, ones, ones, 1e-5)
    variance = x.double().var((0, 2, 3), correction=0).cpu()
    assert ((found[2].cpu() - variance).abs() <= 64 * 2.0**-24 * variance).all()


@pytest.mark.gpu
def test_a_first_element_far_away_costs_a_cluster_nothing() -> None:
    x = torch.randn(32, 16, 8, 8).to(DEVICE, memory_format=torch.channels_last)
    x[0, :, 0, 0] = 1e4
    quick, ones = fast.load("batch_norm"), torch.ones(16, device=DEVICE)
    assert fast.load("batch_norm_clusters").takes(x, last=True)
    found = quick.train(x, ones, ones, 1e-5)
    variance = x.double().var((0, 2, 3), correction=0).cpu()
    assert ((found[2].cpu() - variance).abs() <= 1e-6 * variance).all()


def test_clusters_have_room_and_hold_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fast.load("batch_norm_clusters")
    monkeypatch.setattr(module, "multiprocessors", lambda _: 132)
    monkeypatch.setattr(module, "largest", lambda _: 16)
    cut = functools.partial(module._cut.__wrapped__, device=torch.device("cpu"))
    assert cut(2048, 64) == (16, 128, 16, 4)  # four clusters, one program on a multiprocessor
    assert cut(1024, 1024) == (4, 256, 16, 4)  # 64 clusters, no smaller than they must be
    assert cut(16384, 128) == (16, 1024, 16, 8)
    half = torch.empty(1, dtype=torch.half)
    sizes = [(511, 64), (512, 64), (4097, 1024), (16384, 128), (16384, 144), (2049, 1024)]
    taken = [module.takes(half.expand(size), last=True) for size in sizes]
    assert taken == [False, True, False, True, False, False]
    assert not module.takes(torch.empty(1).expand(1023, 64), last=True)
    assert not module.takes(half.expand(2048, 64), last=False)


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("columns", [1, 5, 64, 70, 96, 256, 300, 2048])
def test_strips_cover_all_columns_with_few_idle_lanes(columns: int, itemsize: int) -> None:
    last = fast.load("batch_norm_last")
    grid = last.Grid.of(
        torch.empty((9, columns, 7, 7), dtype={2: torch.half, 4: torch.float}[itemsize])
    )
    for across, whole, rows, width in (grid.summed, grid.written):
        assert across * width >= columns > (across - 1) * width
        assert whole == (columns % width == 0)
        assert 1 <= rows <= last.MOST_ROWS
        # a strip is wider than a line of the cache only if none of its lanes is idle
        assert whole or width * itemsize <= last.LINE


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape", [(16, 64, 64, 64), (8, 32, 7, 7), (64, 72, 7, 7), (5, 19, 13, 17)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_kernel_of_the_operator_takes_it(
    shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format
) -> None:
    # a mean of about 0 would be compared with its own rounding
    x = (torch.randn(shape, device="cuda") + 2).to(dtype, memory_format=layout)
    dy = torch.randn_like(x)
    scale = torch.rand(shape[1], device="cuda") + 0.5
    shift = torch.rand(shape[1], device="cuda")
    assert batch_norm.fast_images(x, dy, scale, shift) is not None
    forward, backward = _truth(x, dy, scale, shift)
    tolerance = 1e-2 if dtype is torch.bfloat16 else 1e-5
    found = batch_norm.train(x, scale, shift, 1e-5)
    _near(found, forward, tolerance)
    again = batch_norm.train(x, scale, shift, 1e-5)
    assert all(map(torch.equal, found, again))
    grads = batch_norm.batch_normalization_grad(dy, x, scale, found[1], found[3], epsilon=1e-5)
    _near(grads, backward, tolerance)
    old = [torch.rand_like(scale), torch.rand_like(scale)]
    new = batch_norm.batch_norm_internal(x, scale, shift, *old, momentum=0.9)
    count = x.numel() // shape[1]
    torch.testing.assert_close(new[1], old[0] * 0.9 + found[1] * 0.1)
    torch.testing.assert_close(new[2], old[1] * 0.9 + found[2] * (count / (count - 1)) * 0.1)
