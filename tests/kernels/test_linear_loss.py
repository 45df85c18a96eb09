"""A projection with its cross entropy, at once and in parts, beside autograd."""

import pytest
import torch

from onnxtrain.kernels.loss import projected
from onnxtrain.kernels.loss.projected import Projection, linear_cross_entropy_with_grad

pytest.importorskip("triton", reason="Triton is not installed on this platform")


def _drawn(device: str, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    sizes = [(17, 6), (23, 6), (23,), (23,)]
    return [torch.randn(size, generator=random).to(device, dtype) for size in sizes]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("most", [1 << 20, 100, 1], ids=["one part", "some", "row by row"])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_parts(
    device: str, reduction: str, most: int, full: bool, turned: bool, monkeypatch
) -> None:
    monkeypatch.setattr(projected, "MOST", most)
    monkeypatch.setattr(Projection, "is_quick", True)
    x, weight, bias, classes = _drawn(device)
    labels = torch.arange(17, device=device)
    labels[4::5] = -1
    leaves = [t.clone().requires_grad_() for t in ((x, weight, bias) if full else (x, weight))]
    loss = torch.nn.functional.cross_entropy(
        torch.nn.functional.linear(*leaves),
        labels,
        classes.abs() if full else None,
        ignore_index=-1,
        reduction=reduction,
    )
    expected = torch.autograd.grad(0.7 * loss, leaves)
    optional = (bias, classes.abs()) if full else ()
    factor = torch.tensor(0.7, device=device)
    if turned:
        weight = weight.T.contiguous().T
    found, *gradients = linear_cross_entropy_with_grad(
        x, weight, labels, factor, *optional, reduction=reduction
    )
    assert (gradients[1].T if turned else gradients[1]).is_contiguous()
    torch.testing.assert_close(found, loss.detach(), rtol=1e-5, atol=1e-6)
    gradients = [g for g in gradients if g is not None]
    torch.testing.assert_close(gradients, list(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("turned", [False, True])
def test_narrow_rows_give_a_wide_loss(turned: bool, monkeypatch) -> None:
    def never(*_) -> None:
        raise AssertionError("all scores at once")

    monkeypatch.setattr(Projection, "at_once", never)
    monkeypatch.setattr(projected, "MOST", 1 << 21)
    random = torch.Generator().manual_seed(3)
    x, weight = (
        torch.randn(n, 64, generator=random).to("cuda", torch.bfloat16) for n in (3000, 5001)
    )
    if turned:
        weight = weight.T.contiguous().T
    labels = torch.arange(3000, device="cuda")
    one = torch.ones((), device="cuda")
    loss, dx, dw, _ = linear_cross_entropy_with_grad(x, weight, labels, one, output_type=1)
    scores = (x.double() @ weight.double().T).requires_grad_()
    true = torch.nn.functional.cross_entropy(scores, labels)
    (grad,) = torch.autograd.grad(true, scores)
    assert (dw.T if turned else dw).is_contiguous()
    assert loss.dtype is torch.float32 and [dx.dtype, dw.dtype] == [torch.bfloat16] * 2
    torch.testing.assert_close(loss.double(), true.detach(), rtol=1e-3, atol=0)
    for ours, exact in ((dx, grad @ weight.double()), (dw, grad.T @ x.double())):
        assert (ours.double() - exact).norm() <= 1e-2 * exact.norm()


def test_losses_of_single_rows_are_refused() -> None:
    one = torch.ones(1, 1)
    labels = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="reduction is 'none', must be mean or sum"):
        linear_cross_entropy_with_grad(one, one, labels, one, reduction="none")
