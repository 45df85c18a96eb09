"""Softmax with a bias and dropout by Triton, beside the portable kernels."""

import pytest
import torch

from kernels.fast import drawn, module, near, on_devices
from onnxtrain.kernels.activation.bias_softmax import (
    bias_softmax,
    bias_softmax_dropout,
    softmax_dropout_grad,
)

SHAPES = [(12, 40, 4), (6, 8, 6), (3, 1000, 1), (32, 64, 2)]
"""Rows, their length, and rows of the bias."""
MANY = [(8192, 64, 8), (6150, 40, 6)]
"""The same, for a GPU."""


@on_devices
@pytest.mark.parametrize("inner", [0, 1])
def test_bias_softmax(device: str, dtype: str, inner: int) -> None:
    for rows, columns, count in SHAPES + (MANY if device == "cuda" else []):
        x, bias = (drawn(n, columns, device=device, dtype=dtype) * 3 for n in (rows, count))
        x[0, 1] = float("-inf")
        ours = module("bias_softmax").bias_softmax(x, bias, bool(inner))
        both = [(x, bias), (x.double(), bias.double())]
        near(ours, *[bias_softmax(*pair, axis=1, is_inner_broadcast=inner) for pair in both])
        assert ours[0, 1] == 0


@on_devices
def test_dropped_softmax_of_a_seed(device: str, dtype: str) -> None:
    """The masks are those of the portable kernel; so are values and gradients, up to rounding."""
    quick = module("bias_softmax")
    for rows, columns, count in SHAPES:
        x, bias = (drawn(n, columns, device=device, dtype=dtype) for n in (rows, count))
        y, mask, soft = quick.bias_softmax_dropout(x, bias, True, 0.3, 12345678901, None)
        sides = [
            bias_softmax_dropout(*pair, 0.3, axis=1, is_inner_broadcast=1, seed=12345678901)
            for pair in [(x, bias), (x.double(), bias.double())]
        ]
        for ours, theirs, true in zip((y, soft), sides[0][::2], sides[1][::2], strict=True):
            near(ours, theirs, true)
        assert torch.equal(mask, sides[0][1]) and bool((y[~mask] == 0).all())
        dy = drawn(rows, columns, device=device, dtype=dtype)
        ours = quick.softmax_dropout_grad(dy, mask, soft, 0.3)
        theirs = softmax_dropout_grad(dy, mask, soft, 0.3, axis=1)
        near(ours, theirs, softmax_dropout_grad(dy.double(), mask, soft.double(), 0.3, axis=1))


@on_devices
def test_dropped_softmax_of_a_generator(device: str, dtype: str) -> None:
    quick, rng = module("bias_softmax"), torch.Generator(device)
    x = drawn(32, 1024, device=device, dtype=dtype)
    masks = []
    for seed in (3, 3, 4):
        rng.manual_seed(seed)
        y, mask, soft = quick.bias_softmax_dropout(x, x[:1], False, 0.25, None, rng)
        masks.append(mask)
        assert torch.equal(y != 0, mask) and abs(mask.float().mean().item() - 0.75) < 0.02
        near(y[mask], (soft[mask].float() / 0.75).to(x.dtype), soft[mask].double() / 0.75)
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])


def test_rows_that_are_not_taken() -> None:
    takes = module("bias_softmax").takes
    assert takes(torch.empty(2, 8)) and takes(torch.empty(2, 8, dtype=torch.float16))
    assert not takes(torch.empty(2, 6)) and not takes(torch.empty(2, 12, dtype=torch.float16))
    assert not takes(torch.empty(2, 0)) and not takes(torch.empty(1, 1 << 15))
