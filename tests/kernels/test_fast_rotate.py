"""Rotated pairs as the operator hands them to Triton."""

import pytest
import torch

from kernels.fast import drawn, module, near, on_devices
from onnxtrain.kernels.attention import rotate


@on_devices
@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("layout", ["heads", "turned", "part", "matrix"])
def test_however_it_lies_in_memory(
    layout: str,
    shared: bool,
    interleaved: int,
    inverse: int,
    device: str,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Heads one behind the other, or those of each token together, or a part of their features."""
    monkeypatch.setattr(rotate, "_is_fast", lambda *tensors: True)
    x = drawn(2, 5, 3, 20, device=device, dtype=dtype)
    x = {"turned": x.transpose(1, 2), "part": x[..., 4:16], "matrix": x[0, 0]}.get(layout, x)
    width = x.shape[-1] // 2 if shared else x.shape[-1]
    shapes = [(x.shape[-2], width), (width,) if layout == "matrix" else (*x.shape[1:-1], width)]
    cos, sin = (drawn(*shape, device=device, dtype="float32") for shape in shapes)
    given = {"inverse": inverse, "interleaved": interleaved}
    found = rotate.rotate(x, cos, sin, **given)
    monkeypatch.setattr(rotate, "_is_fast", lambda *tensors: False)
    true = rotate.rotate(x.double(), cos.double(), sin.double(), **given)
    near(found, rotate.rotate(x, cos, sin, **given), true)
    assert layout != "turned" or found.transpose(1, 2).is_contiguous()


def test_rows_that_overlap() -> None:
    """What comes out lies apart, with the features of a row side by side."""
    x, angles = torch.randn(100).as_strided((4, 3, 6), (1, 7, 1)), torch.randn(6)
    found = module("rotate").rotate(x, angles, angles, False)
    true = rotate.rotate(x.contiguous(), angles, angles)
    torch.testing.assert_close(found, true)


def test_axes_of_more_rows_than_32_bits_count() -> None:
    """The first rows of a tensor with 6 * 715827883 rows behind each step of its first axis."""
    x, angles = torch.randn(4, 8), torch.randn(4, 8)
    out = torch.zeros(12, 8)
    rows, steps = (6, 715827883), (64, 32, 8)
    strides = steps, steps, (0, 0, 8), (0, 0, 8)
    numbers = 3 * rows[0] * rows[1], *rows, *(n for each in strides for n in each)
    module("rotate")._rotate[(1,)](
        *(out, x, angles, angles, *numbers, 4, False, False, False, True, 4, 4), num_warps=1
    )
    torch.testing.assert_close(out[:4], rotate.rotate(x, angles, angles))
    assert not out[4:].any()


def test_which_rows_are_taken() -> None:
    """Angles for features or for pairs, both of one kind, side by side in memory."""
    takes, x = module("rotate").takes, torch.ones(5, 8)
    assert takes(x, x, x) and takes(x, x[:, :4], x[:, :4])
    assert not takes(x, x, x[:, :4])
    assert not takes(x, x[:, ::2], x[:, ::2])
    assert not takes(x, x[:, :2], x[:, :2])


def test_what_does_not_fit_is_refused() -> None:
    x = torch.ones(2, 3, 4)
    with pytest.raises(ValueError, match="no halves"):
        rotate.rotate(x[..., :3], x[..., :3], x[..., :3])
    with pytest.raises(ValueError, match=r"sin has shape \(2, 4\)"):
        rotate.rotate(x, x, x[:, 0])
    for width in (0, 1, 3):
        with pytest.raises(ValueError, match="cos has shape"):
            rotate.rotate(x, x[..., :width], x)
