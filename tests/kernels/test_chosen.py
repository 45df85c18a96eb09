"""Where on a CPU, which chooses by bits, and elementwise kernels of images that lie otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from onnxtrain.kernels.activation.gelu import quick_gelu_grad
from onnxtrain.kernels.nn.group_norm import group_normalized
from onnxtrain.kernels.tensor import chosen
from onnxtrain.kernels.tensor.select import where

LAST = torch.channels_last
SHAPE = (2, 3, 5, 4)
DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32,
    torch.uint8, torch.bool,
]  # fmt: skip


@pytest.fixture(autouse=True)
def _however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen, "LEAST", 1)


def drawn(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x, y = (torch.randn(SHAPE).mul(10).to(dtype) for _ in range(2))
    if dtype.is_floating_point:
        x[0, 0, 0] = torch.tensor([float("nan"), -0.0, float("inf"), 0.0], dtype=dtype)
        y[0, 0, 1] = torch.tensor([float("nan"), -0.0, -float("inf"), 0.0], dtype=dtype)
    return torch.rand(SHAPE) < 0.5, x, y


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST])
@pytest.mark.parametrize(
    "form",
    [
        lambda x, y: (x, y),
        lambda x, y: (torch.zeros((), dtype=x.dtype), y),
        lambda x, y: (x, torch.zeros((), dtype=x.dtype)),
        lambda x, y: (torch.full((), 3, dtype=x.dtype), y),
        lambda x, y: (x, torch.full((), 3, dtype=x.dtype)),
        lambda x, y: (torch.full((), 3, dtype=x.dtype), torch.zeros((), dtype=x.dtype)),
        lambda x, y: (torch.zeros((), dtype=x.dtype), torch.zeros((), dtype=x.dtype)),
    ],
    ids=["both", "zero or y", "x or zero", "three or y", "x or three", "numbers", "zeros"],
)
def test_every_bit_is_that_of_one_of_both(
    dtype: torch.dtype, layout: torch.memory_format, form: Callable[..., tuple[Tensor, Tensor]]
) -> None:
    condition, x, y = (t.contiguous(memory_format=layout) for t in drawn(dtype))
    a, b = form(x, y)
    found = chosen.chosen(condition, a, b, None)
    assert found is not None and found.is_contiguous(memory_format=layout)
    assert torch.equal(bits(found), bits(torch.where(condition, a, b)))
    for out in (t for t in (a, b) if t.ndim):
        expected, room = torch.where(condition, a, b), out
        kept = out.clone(memory_format=torch.preserve_format)
        assert where(condition, a, b, out=room) is room
        assert torch.equal(bits(room), bits(expected))
        out.copy_(kept)


def test_what_is_left_to_torch() -> None:
    condition, x, y = drawn(torch.float32)
    turned = x.contiguous(memory_format=LAST)
    for given in (
        (condition, turned, y),
        (condition, x[:1], y),
        (condition[:, :, ::2], x[:, :, ::2], y[:, :, ::2]),
        (condition, x.requires_grad_(), y),
        (condition, x.detach().to(torch.complex64).to(torch.complex128), y.to(torch.complex128)),
    ):
        assert chosen.chosen(*given, None) is None
        assert torch.equal(where(*given), torch.where(*given)) or given[1].isnan().any()
    assert chosen.chosen(torch.tensor(True), torch.tensor(1.0), torch.tensor(2.0), None) is None


@pytest.mark.parametrize("alpha", [1.0, 1.702])
def test_gradients_of_images_that_lie_otherwise(alpha: float) -> None:
    x, dy = torch.randn(2, 2, 9, 6, 5).unbind()
    expected = quick_gelu_grad(dy, x, alpha=alpha)
    for a in (torch.contiguous_format, LAST):
        for b in (torch.contiguous_format, LAST):
            given = dy.contiguous(memory_format=a), x.contiguous(memory_format=b)
            found = quick_gelu_grad(*given, alpha=alpha)
            assert found.is_contiguous(memory_format=a)
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
            room = given[1].clone(memory_format=torch.preserve_format)
            assert quick_gelu_grad(given[0], room, alpha=alpha, out=room) is room
            torch.testing.assert_close(room, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST])
def test_normalized_groups_lie_as_their_images(layout: torch.memory_format) -> None:
    x = torch.randn(3, 8, 6, 5)
    scale, bias = torch.randn(2, 8)
    y, *_ = group_normalized(x.contiguous(memory_format=layout), scale, bias, num_groups=4)
    assert y.is_contiguous(memory_format=layout)
    torch.testing.assert_close(y, torch.nn.functional.group_norm(x, 4, scale, bias))


def test_images_lie_with_their_channels_first_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU torch refuses to normalize groups of others."""
    native, seen = torch.native_group_norm, []

    def spy(x: Tensor, *others: object) -> object:
        seen.append(x.is_contiguous())
        return native(x, *others)

    monkeypatch.setattr(torch, "native_group_norm", spy)
    scale, bias, x = (torch.empty(n, device="meta") for n in ((8,), (8,), (3, 8, 6, 5)))
    group_normalized(x.contiguous(memory_format=LAST), scale, bias, num_groups=4)
    assert seen == [True]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_few_groups_with_their_channels_last_on_a_gpu(dtype: torch.dtype) -> None:
    x, vectors = (torch.randn(n).to("cuda", dtype) for n in ((3, 8, 6, 5), (2, 8)))
    scale, bias = vectors
    y, *_ = group_normalized(x.contiguous(memory_format=LAST), scale, bias, num_groups=4)
    torch.testing.assert_close(y, torch.nn.functional.group_norm(x, 4, scale, bias))
