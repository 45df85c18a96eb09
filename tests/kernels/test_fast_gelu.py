"""Gelu without a bias and its gradients, as the operators hand them to Triton."""

import pytest
import torch
from torch import Tensor

from kernels.fast import drawn, on_devices
from onnxtrain.kernels.activation import gelu


@on_devices
@pytest.mark.parametrize("form", ["none", "tanh"])
def test_a_value_in_place(
    form: str, device: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gelu.fast, "ready", lambda *tensors, **_: True)
    monkeypatch.setattr(gelu, "forward", None)
    x = drawn(5, 33, device=device, dtype=dtype)
    true = torch.nn.functional.gelu(x.double(), approximate=form)
    found = gelu.gelu(x, approximate=form)
    width = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    torch.testing.assert_close(found.double(), true, rtol=width, atol=width)
    assert gelu.gelu(x, approximate=form, out=x) is x and torch.equal(found, x)


@on_devices
@pytest.mark.parametrize(
    ("operator", "form"), [(gelu.gelu_grad, "none"), (gelu.fast_gelu_grad, "tanh")]
)
def test_a_gradient_in_place(
    operator, form: str, device: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gelu.fast, "ready", lambda *tensors, **_: True)
    x, dy = (drawn(5, 33, device=device, dtype=dtype) for _ in range(2))
    wide = x.double().requires_grad_()
    y = torch.nn.functional.gelu(wide, approximate=form)
    (true,) = torch.autograd.grad(y, wide, dy.double())
    found: Tensor = operator(dy, x)
    width = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
    torch.testing.assert_close(found.double(), true, rtol=width, atol=width)
    assert operator(dy, x, out=dy) is dy and torch.equal(found, dy)


@on_devices
@pytest.mark.parametrize("operator", [gelu.gelu_grad, gelu.fast_gelu_grad])
def test_a_gradient_far_out(
    operator, device: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where x³ is beyond float32, too."""
    monkeypatch.setattr(gelu.fast, "ready", lambda *tensors, **_: True)
    far = 6e4 if dtype == "float16" else 1e15
    x, dy = (torch.tensor([far, -far], device=device, dtype=getattr(torch, dtype)), torch.ones(2))
    found: Tensor = operator(dy.to(x), x)
    assert found.tolist() == [1, 0]


def test_gradients_of_another_shape_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gelu.fast, "ready", lambda *tensors, **_: True)
    for operator in (gelu.gelu_grad, gelu.fast_gelu_grad):
        with pytest.raises(ValueError, match="dY has shape"):
            operator(torch.ones(3), torch.ones(2, 3))


def test_images_lie_alike() -> None:
    """Where the order of elements does not matter, channels may be last, of all or of none."""
    fast = gelu.fast
    first = torch.ones(2, 3, 4, 5)
    last, volume = (
        torch.ones(sizes).contiguous(memory_format=form)
        for sizes, form in (
            ((2, 3, 4, 5), torch.channels_last),
            ((2, 3, 4, 5, 6), torch.channels_last_3d),
        )
    )
    assert fast._are_last([last, last]) and fast._are_last([volume])
    for others in ([first], [first, last], [last, first], [last, volume], [last[:, :, ::2]]):
        assert not fast._are_last(others)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_values_and_gradients_of_images(
    form: torch.memory_format, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one launch each, whatever the order of memory, which the results keep."""
    x, dy = (
        torch.randn(3, 24, 17, 19, device="cuda").to(dtype).contiguous(memory_format=form)
        for _ in range(2)
    )
    wide = x.double().requires_grad_()
    y = wide * torch.sigmoid(1.5 * wide)
    (true,) = torch.autograd.grad(y, wide, dy.double())
    monkeypatch.setattr(gelu.blocks, "apply", None)
    found, grad = gelu.quick_gelu(x, alpha=1.5), gelu.quick_gelu_grad(dy, x, alpha=1.5)
    assert found.stride() == grad.stride() == x.stride()
    width = {torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(found.double(), y.detach(), rtol=width, atol=width)
    torch.testing.assert_close(grad.double(), true, rtol=width, atol=width)
