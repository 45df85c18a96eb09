"""What convolutions refuse; their values are rows of the table."""

import pytest
import torch

from onnxtrain.kernels.nn.conv import conv, conv_grad
from onnxtrain.kernels.nn.conv_transpose import conv_transpose


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
