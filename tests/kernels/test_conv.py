"""What convolutions refuse; their values are rows of the table."""

import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from onnxtrain.kernels.nn.conv import conv, conv_grad
from onnxtrain.kernels.nn.conv_transpose import conv_transpose, conv_transpose_grad
from onnxtrain.kernels.nn.window import resolve
from onnxtrain.kernels.precision import Grads


@pytest.mark.parametrize(
    ("x", "w", "options", "message"),
    [
        ((1, 2, 5), (3, 2, 3, 3), {}, "X num_dims does not match W num_dims"),
        ((1, 2), (3, 2), {}, "1 to 3 spatial axes"),
        ((1, 3, 5), (4, 2, 3), {}, "input channels C is not equal to kernel channels"),
        ((1, 4, 5), (3, 2, 3), {"group": 2}, "output channels M is not divisible by group"),
        ((1, 2, 5), (4, 2, 3), {"kernel_shape": (2,)}, "kernel_shape"),
        ((1, 2, 5), (4, 2, 3), {"auto_pad": "SAME_UPPER", "pads": (1, 1)}, "has both 'auto_pad'"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(x, w, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        conv(torch.zeros(x), torch.zeros(w), **options)
    with pytest.raises(ValueError, match=message):
        conv_grad(torch.zeros(1), torch.zeros(x), torch.zeros(w), **options, wanted=(True,))


def test_transposed_channels_are_those_of_the_first_axis() -> None:
    with pytest.raises(ValueError, match="3 and 2"):
        conv_transpose(torch.zeros(1, 3, 5), torch.zeros(2, 4, 3))


def test_a_large_filter_gets_the_same_gradient_whatever_the_layout_of_its_input() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(2, 3, 6, 40), torch.randn(4, 3, 3, 27)
    options = {"pads": (1, 13, 1, 13), "wanted": (True, True, True)}
    dy = torch.randn(2, 4, 6, 40)
    last = torch.channels_last
    plain = conv_grad(dy, x, w, **options)
    turned = conv_grad(dy.contiguous(memory_format=last), x.to(memory_format=last), w, **options)
    for one, other in zip(plain, turned, strict=True):
        torch.testing.assert_close(other, one)


LAST = torch.channels_last


@pytest.mark.parametrize(
    ("x", "w", "last"),
    [
        ((2, 3, 8, 8), (4, 3, 3, 3), torch.backends.mkldnn.is_available()),
        ((2, 1, 8, 8), (4, 1, 3, 3), torch.backends.mkldnn.is_available()),
        ((1, 8, 2, 2), (32, 8, 3, 3), False),
        ((2, 3, 12, 12), (4, 3, 9, 9), False),
    ],
)
def test_images_lie_on_the_cpu_as_they_are_convolved_fastest(x, w, last) -> None:
    y = conv(torch.randn(x), torch.randn(w), pads=(1, 1, 1, 1))
    assert (y.is_contiguous(memory_format=LAST) and not y.is_contiguous()) == last


@pytest.mark.parametrize("channels", [(1, 6), (4, 1), (1, 1)])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_images_of_one_channel(channels: tuple[int, int], kernel: int) -> None:
    """Strides of a single channel say nothing; they are made to tell that it is the last."""
    into, out = channels
    x, w, b = torch.randn(3, into, 9, 8), torch.randn(out, into, kernel, kernel), torch.randn(out)
    options = {"pads": (kernel // 2,) * 4}
    y, dy = conv(x, w, b, **options), torch.randn(3, out, 9, 8)
    wide = conv(x.double(), w.double(), b.double(), **options)
    torch.testing.assert_close(y.double(), wide, rtol=1e-5, atol=1e-5)
    grads = conv_grad(dy, x, w, **options, wanted=(True,) * 3)
    exact = conv_grad(dy.double(), x.double(), w.double(), **options, wanted=(True,) * 3)
    for one, other in zip(grads, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 1, 2, 0)])
def test_the_layout_of_images_changes_no_result(group: int, pads: tuple[int, ...]) -> None:
    x, w, b = torch.randn(2, 4, 7, 6), torch.randn(6, 4 // group, 3, 3), torch.randn(6)
    options = {"group": group, "pads": pads, "strides": (2, 1)}
    y = conv(x, w, b, **options)
    wide = conv(x.double(), w.double(), b.double(), **options)
    torch.testing.assert_close(y.double(), wide, rtol=1e-5, atol=1e-5)
    dy = torch.randn(y.shape)
    grads = conv_grad(dy, x, w, **options, wanted=(True, True, True))
    exact = conv_grad(dy.double(), x.double(), w.double(), **options, wanted=(True, True, True))
    for one, other in zip(grads, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


STRIDED = """
import torch
from onnxtrain.kernels.nn.conv import conv_grad

torch.manual_seed(0)
for channels in (1, 2, 3, 7):
    for _ in range(100):
        x = torch.randn(2, 8, 8, channels).movedim(-1, 1)
        dy, w = torch.randn(2, 4, 4, 4), torch.randn(4, channels, 1, 1)
        found = conv_grad(dy, x, w, strides=(2, 2), wanted=(True, True, True))
        wide = conv_grad(dy.double(), x.double(), w.double(), strides=(2, 2), wanted=(True,) * 3)
        for one, other in zip(found, wide, strict=True):
            torch.testing.assert_close(one, other.float(), rtol=1e-4, atol=1e-4)
print("done")
"""


THIN = """
import torch
from onnxtrain.kernels.nn.conv import conv

torch.manual_seed(0)
cases = [
    ((33, 16, 6, 1), (2, 1), (1, 3), (1, 2), (2, 2)),
    ((33, 8, 4, 1), (4, 1), (3, 2), (1, 2), (1, 3)),
    ((33, 3, 3, 1), (3, 1), (2, 3), (2, 2), (3, 2)),
    ((2, 1, 13, 1), (4, 1), (3, 2), (1, 2), (1, 3)),
    ((33, 1, 17, 5), (7, 4), (1, 3), (2, 1), (1, 0)),
    ((5, 1, 10, 6), (5, 6), (1, 3), (1, 1), (3, 1)),
]
for shape, kernel, strides, dilations, pads in cases:
    options = {"strides": strides, "dilations": dilations, "pads": pads * 2}
    for _ in range(50):
        x, w, b = torch.randn(shape), torch.randn(3, shape[1], *kernel), torch.randn(3)
        y = conv(x, w, b, **options)
        wide = conv(x.double(), w.double(), b.double(), **options)
        torch.testing.assert_close(y, wide.float(), rtol=1e-4, atol=1e-4)
print("done")
"""


@pytest.mark.parametrize("code", [STRIDED, THIN], ids=["strided", "thin"])
def test_images_that_onednn_would_overrun(code: str) -> None:
    """It writes past the end of its memory: torch itself ends with a fault for some of these."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "done\n"), run.stderr


def test_filters_of_one_pixel_are_not_dilated() -> None:
    window = resolve((5, 1), (3, 1), (1, 4), (2, 3), (0, 2, 0, 2), "NOTSET")
    assert window.dilations == (2, 1) and window.extent == (5, 1)
    x, w, b = torch.randn(1, 48, 5, 2), torch.randn(16, 3, 3, 1), torch.randn(16)
    options = {"group": 16, "dilations": (1, 3), "pads": (0, 2, 0, 2), "strides": (1, 4)}
    found = conv(x.contiguous(memory_format=torch.channels_last), w, b, **options)
    expected = conv(x.double(), w.double(), b.double(), **options)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


STRAYING = [
    ((3, 4, 3, 2), (64, 1, 3, 3), {"group": 4, "pads": (0, 2, 0, 2), "strides": (1, 3)}),
    ((2, 16, 13, 1), (3, 16, 2, 3), {"pads": (0, 1, 0, 1), "strides": (3, 2)}),
    ((2, 32, 1, 1), (32, 32, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ((1, 4, 13, 3), (12, 1, 2, 3), {"group": 4, "strides": (1, 3), "dilations": (2, 1)}),
    ((1, 16, 2, 2), (32, 1, 1, 5), {"group": 16, "strides": (1, 4), "pads": (0, 3, 0, 3)}),
    ((2, 2, 6, 4), (32, 1, 3, 3), {"group": 2, "strides": (1, 3), "pads": (2, 0, 2, 0)}),
    ((1, 48, 3, 1), (16, 3, 3, 1), {"group": 16, "strides": (1, 4), "pads": (0, 3, 2, 2)}),
]


STRAYING_BACK = [
    ((3, 16, 5, 1), (16, 2, 1, 1), {"strides": (2, 3)}),
    (
        (1, 4, 2, 2),
        (4, 3, 4, 1),
        {"group": 2, "pads": (1, 2, 1, 1), "dilations": (3, 3), "strides": (1, 3)},
    ),
    (
        (3, 16, 5, 1),
        (16, 1, 4, 3),
        {"pads": (2, 2, 0, 1), "strides": (1, 2), "output_padding": (0, 1)},
    ),
    ((2, 32, 1, 1), (32, 32, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
]


NARROW_OR_SMALL = [
    *((conv, conv_grad, *case) for case in STRAYING),
    *((conv_transpose, conv_transpose_grad, *case) for case in STRAYING_BACK),
]


@pytest.mark.parametrize(("forward", "backward", "shape", "kernel", "options"), NARROW_OR_SMALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_small_images_are_read_no_further(
    forward: Callable[..., torch.Tensor],
    backward: Callable[..., Grads],
    shape: tuple[int, ...],
    kernel: tuple[int, ...],
    options: dict[str, Any],
    dtype: torch.dtype,
) -> None:
    """Memory is full of NaN before, which oneDNN would multiply by zero; or it ends the process."""
    x, w = torch.randn(shape).to(dtype), torch.randn(kernel).to(dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    expected = forward(x.double(), w.double(), **options)
    dy = torch.randn(expected.shape).to(dtype)
    back = functools.partial(backward, **options, wanted=(True, True))
    grads = back(dy.double(), x.double(), w.double())[:2]
    allowed = max(2.5 * torch.finfo(dtype).eps, 1e-5)
    for _ in range(5):
        _leave_nan()
        y = forward(x, w, **options)
        _leave_nan()
        found = back(dy, x, w)[:2]
        for one, other in zip((y, *found), (expected, *grads), strict=True):
            error = (one.double() - other).abs().max()
            assert one.dtype is dtype and error <= allowed * other.abs().max()


def test_more_is_cut_off_than_there_was_before_the_padding() -> None:
    x, w = torch.randn(1, 2, 1), torch.randn(2, 3, 1)
    options = {"pads": (2, 0), "output_padding": (2,)}
    y = conv_transpose(x, w, **options)
    assert y.tolist() == torch.zeros(1, 3, 1).tolist()
    dx, dw, _ = conv_transpose_grad(torch.ones_like(y), x, w, **options, wanted=(True, True))
    assert not dx.any() and not dw.any()


def _leave_nan() -> None:
    """Free memory in pieces of many sizes."""
    kept = [torch.full((1 << n,), torch.nan) for n in range(4, 14) for _ in range(50)]
    del kept


def test_filters_of_transposed_convolutions_may_lie_in_any_order() -> None:
    """Torch takes a line for an image with its channels last, and its filter for one without."""
    dy, x, w = torch.randn(1, 2, 3), torch.randn(2), torch.randn(1, 2, 2)
    turned = w.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    x = x.as_strided((1, 1, 2), (2, 1, 1))
    expected = conv_transpose_grad(dy, x.clone(), w, wanted=(True,) * 3)
    found = conv_transpose_grad(dy, x, turned, wanted=(True,) * 3)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
