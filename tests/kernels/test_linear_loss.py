"""A linear layer with its cross entropy in chunks, beside autograd."""

import pytest
import torch

from onnxtrain.kernels.loss.linear import linear_cross_entropy


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("chunk_bytes", [1 << 20, 900, 1])
@pytest.mark.parametrize("full", [False, True])
def test_gradients(device: str, reduction: str, chunk_bytes: int, full: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    x, weight, bias, classes = (
        torch.randn(size, generator=generator, dtype=torch.float64).to(device)
        for size in [(17, 6), (23, 6), (23,), (23,)]
    )
    labels = torch.randint(0, 23, (17,), generator=generator).to(device)
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
    found = linear_cross_entropy(
        x,
        weight,
        labels,
        torch.tensor(0.7, device=device),
        bias if full else None,
        classes.abs() if full else None,
        reduction=reduction,
        chunk_bytes=chunk_bytes,
    )
    torch.testing.assert_close(found.loss, loss.detach())
    gradients = [g for g in (found.dx, found.dweight, found.dbias) if g is not None]
    torch.testing.assert_close(gradients, list(expected))


def test_narrow_rows_give_a_wide_loss(device: str) -> None:
    generator = torch.Generator().manual_seed(3)
    x, weight = (
        torch.randn(n, 16, generator=generator).to(device, torch.bfloat16) for n in (40, 64)
    )
    labels = torch.arange(40, device=device)
    found = linear_cross_entropy(
        x, weight, labels, torch.ones((), device=device), chunk_bytes=64 * 2 * 7
    )
    scores = (x.float() @ weight.float().T).requires_grad_()
    loss = torch.nn.functional.cross_entropy(scores, labels)
    (grad,) = torch.autograd.grad(loss, scores)
    assert found.loss.dtype is torch.float32
    assert [found.dx.dtype, found.dweight.dtype] == [torch.bfloat16] * 2
    torch.testing.assert_close(found.loss, loss.detach(), rtol=1e-2, atol=0)
    for ours, true in ((found.dx, grad @ weight.float()), (found.dweight, grad.T @ x.float())):
        assert (ours.float() - true).norm() <= 2e-2 * true.norm()


def test_losses_of_single_rows_are_refused() -> None:
    one = torch.ones(1, 1)
    with pytest.raises(ValueError, match="allowed are 'mean' and 'sum'"):
        linear_cross_entropy(one, one, torch.zeros(1, dtype=torch.int64), one, reduction="none")
