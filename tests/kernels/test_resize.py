"""Images that only have rows and columns repeated, against the map for all ways of resizing."""

from __future__ import annotations

import pytest
import torch

from onnxtrain.kernels.layout import layout_of
from onnxtrain.kernels.tensor import resize
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
    repeats = resize._repeats(x, axes, Sampling("nearest", *mode)) is not None
    assert repeats == (mode[1] != "ceil" and all(scale in (1, 2, 3, 4) for scale in scales))
    monkeypatch.setattr(resize, "_repeats", lambda *given: None)
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
