"""Repeated images, and those that torch interpolates, against the map for all ways to resize."""

from __future__ import annotations

import pytest
import torch

from onnxtrain.kernels.layout import layout_of
from onnxtrain.kernels.tensor import resize, resize_images
from onnxtrain.kernels.tensor.resample import Sampling

MODES = [("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("asymmetric", "ceil")]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("scales", [(2.0, 2.0), (3.0, 1.0), (1.0, 4.0), (1.5, 2.0), (0.5, 2.0)])
@pytest.mark.parametrize("mode", MODES, ids="-".join)
def test_repeated_images(
    mode: tuple[str, str],
    scales: tuple[float, float],
    layout: torch.memory_format,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(2, 3, 4, 6).contiguous(memory_format=layout)
    names = "coordinate_transformation_mode", "nearest_mode"
    how = dict(zip(names, mode, strict=True))
    factors = [1.0, 1.0, *scales]
    y = resize.resize(x, None, factors, **how)
    dy = torch.randn(y.shape).contiguous(memory_format=layout)
    dx = resize.resize_grad(dy, x, None, factors, deterministic=True, **how)
    axes = resize._scaled(x.shape, range(4), factors)
    repeats = resize_images.repeats(x, axes, Sampling("nearest", *mode)) is not None
    assert repeats == (mode[1] != "ceil" and all(scale in (1, 2, 3, 4) for scale in scales))
    monkeypatch.setattr(resize_images, "repeats", lambda *given: None)
    assert torch.equal(y, resize.resize(x, None, factors, **how))
    true = resize.resize_grad(dy, x, None, factors, deterministic=True, **how)
    torch.testing.assert_close(dx, true, rtol=1e-6, atol=1e-6)
    if repeats:
        assert y.is_contiguous(memory_format=layout) and dx.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("shape", "scales"),
    [((2, 3, 1, 1), (4.0, 3.0)), ((2, 3, 1, 5), (2.0, 1.0)), ((2, 3, 4, 4), (1.1, 1.0))],
)
def test_repeated_images_have_memory_of_their_own(
    shape: tuple[int, ...], scales: tuple[float, float], layout: torch.memory_format
) -> None:
    """One row or column that is repeated, or none that is: what comes next may overwrite them."""
    x = torch.randn(shape).contiguous(memory_format=layout)
    before = x.clone()
    y = resize.resize(x, None, [1.0, 1.0, *scales])
    assert torch.equal(y, x.expand_as(y))
    expected = y + 1
    y += 1
    assert torch.equal(x, before) and torch.equal(y, expected)
    assert y.is_contiguous(memory_format=layout_of(x))


PLACES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("sizes", [(8, 12), (5, 6), (9, 3), (4, 1), (1, 7), (13, 19)])
@pytest.mark.parametrize(
    "coordinates",
    ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"],
)
def test_interpolated_images(
    coordinates: str,
    sizes: tuple[int, int],
    layout: torch.memory_format,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By torch's kernel where it reads the same places, and only there."""
    x = torch.randn(2, 3, 4, 6, dtype=torch.float64).to(device).contiguous(memory_format=layout)
    how = {"mode": "linear", "coordinate_transformation_mode": coordinates}
    dy = torch.randn(2, 3, *sizes, dtype=torch.float64).to(device)
    results, kept = [], dy.contiguous(memory_format=layout)
    ran = []
    linear = resize_images.linear
    for served in (True, False):
        monkeypatch.setattr(resize_images, "_is_served", lambda x, served=served: served)
        monkeypatch.setattr(resize_images, "linear", lambda *g: ran.append(linear(*g)) or ran[-1])
        y = resize.resize(x, None, None, [2, 3, *sizes], **how)
        given = {"deterministic": False, **how}
        factors = [1.0, 1.0, sizes[0] / 4, sizes[1] / 6]
        results.append([y, resize.resize_grad(kept, x, None, factors, **given)])
    alike = coordinates == "half_pixel" or coordinates == "align_corners"
    alike = alike or (coordinates == "pytorch_half_pixel" and 1 not in sizes)
    assert [found is not None for found in ran] == [alike, alike, False, False]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("factors", [(1.5, 0.4), (2.3, 1.7), (1.1, 1.1), (1.1, 2.0)])
def test_factors_that_are_not_those_of_the_sizes(
    factors: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A size is rounded down, but places are found by the factor itself."""
    x, scales = torch.randn(1, 2, 7, 9, dtype=torch.float64), [1.0, 1.0, *factors]
    dy = torch.randn(1, 2, int(7 * factors[0]), int(9 * factors[1]), dtype=torch.float64)
    results = []
    for served in (True, False):
        monkeypatch.setattr(resize_images, "_is_served", lambda x, served=served: served)
        y = resize.resize(x, None, scales, mode="linear")
        dx = resize.resize_grad(dy, x, None, scales, mode="linear", deterministic=True)
        results.append((y, dx))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners"])
@pytest.mark.parametrize("sizes", [(64, 128), (100, 333), (1080, 1920), (1920, 1080)])
def test_positions_in_large_images(coordinates: str, sizes: tuple[int, int]) -> None:
    """In float32 torch reads up to a thousandth of a pixel beside them."""
    x, how = torch.randn(1, 1, sizes[0], 4), {"coordinate_transformation_mode": coordinates}
    dy = torch.randn(1, 1, sizes[1], 4)
    found, exact = (
        resize.resize(t, None, None, [1, 1, sizes[1], 4], mode="linear", **how)
        for t in (x, x.double())
    )
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-6)
    factors = [1.0, 1.0, sizes[1] / sizes[0], 1.0]
    found, exact = (
        resize.resize_grad(t, x, None, factors, mode="linear", deterministic=True, **how)
        for t in (dy, dy.double())
    )
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("size", "dtype"), [(777, torch.float64), (540, torch.float32), (333, None)]
)
def test_images_are_not_copied_for_few_of_their_elements(
    size: int, dtype: torch.dtype | None
) -> None:
    x = torch.randn(1, 1, 1080, 4)
    axes = resize._sized(x.shape, [2], [size], "stretch")
    steps = resize_images.linear(x, axes, Sampling("linear"))
    assert (None if steps is None else steps.dtype) is dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_images_of_16_bits_on_a_cpu_are_rounded_once(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 5, 7).to(dtype)
    found = resize.resize(x, None, [1.0, 1.0, 2.0, 2.0], mode="linear")
    exact = resize.resize(x.double(), None, [1.0, 1.0, 2.0, 2.0], mode="linear")
    assert found.dtype is dtype and torch.equal(found, exact.float().to(dtype))


@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("sizes", [(9,), (3,), (9, 4, 11), (4, 4, 7), (2, 3, 5)])
def test_lines_and_volumes(
    coordinates: str, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(2, 3, *(4, 4, 7)[-len(sizes) :], dtype=torch.float64)
    dy = torch.randn(2, 3, *sizes, dtype=torch.float64)
    factors = [new / old for new, old in zip(dy.shape, x.shape, strict=True)]
    how = {"mode": "linear", "coordinate_transformation_mode": coordinates}
    results = []
    for served in (True, False):
        if not served:
            monkeypatch.setattr(resize_images, "_is_served", lambda x: False)
        y = resize.resize(x, None, None, list(dy.shape), **how)
        results.append([y, resize.resize_grad(dy, x, None, factors, deterministic=True, **how)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
