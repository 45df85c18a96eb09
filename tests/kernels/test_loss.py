"""What losses refuse, and in which parts they are computed; their values are rows of the table."""

import pytest
import torch

from onnxtrain.kernels import blocks
from onnxtrain.kernels.loss import with_grad
from onnxtrain.kernels.loss.cross_entropy import (
    softmax_cross_entropy_loss,
    softmax_cross_entropy_loss_grad,
    softmax_cross_entropy_loss_internal,
)
from onnxtrain.kernels.loss.last_axis import (
    softmax_cross_entropy,
    sparse_softmax_cross_entropy,
    sparse_softmax_cross_entropy_grad,
)
from onnxtrain.kernels.loss.likelihood import negative_log_likelihood_loss

SCORES = torch.zeros(3, 4)


def test_labels_outside_of_the_classes_are_refused() -> None:
    wrong = torch.tensor([0, 4, 1])
    message = r"label value 4 at index 1 is out of range \[0, 4\)"
    for loss in (softmax_cross_entropy_loss, sparse_softmax_cross_entropy):
        with pytest.raises(ValueError, match=message):
            loss(SCORES, wrong)
    for grad in (softmax_cross_entropy_loss_grad, sparse_softmax_cross_entropy_grad):
        with pytest.raises(ValueError, match=message):
            grad(torch.ones(()), SCORES, wrong)
    with pytest.raises(ValueError, match=r"out of range \[-4, 4\)"):
        negative_log_likelihood_loss(SCORES, wrong)


def test_a_label_is_not_out_of_range_if_it_is_ignored() -> None:
    labels = torch.tensor([0, 9, 1])
    loss, _ = softmax_cross_entropy_loss(SCORES, labels, ignore_index=9)
    torch.testing.assert_close(loss, torch.log(torch.tensor(4.0)))
    with pytest.raises(ValueError, match="label value -1 at index 0"):
        softmax_cross_entropy_loss(SCORES, torch.tensor([-1, 9, 1]), ignore_index=9)


def test_no_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        softmax_cross_entropy_loss(SCORES[:0], torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="must not be empty"):
        sparse_softmax_cross_entropy(SCORES[:0], torch.zeros(0, dtype=torch.int64))


def test_shapes_that_do_not_fit_are_refused() -> None:
    labels = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"labels have shape \(2,\), the scores ask for \(3,\)"):
        softmax_cross_entropy_loss(SCORES, labels[:2])
    with pytest.raises(ValueError, match="at least 2-D"):
        softmax_cross_entropy_loss(SCORES[0], labels)
    with pytest.raises(ValueError, match=r"must equal the number of classes \(4\)"):
        softmax_cross_entropy_loss(SCORES, labels, torch.ones(5))
    with pytest.raises(ValueError, match="logits and labels is not identical"):
        softmax_cross_entropy(SCORES, SCORES[:2])
    with pytest.raises(ValueError, match="weights and labels is different"):
        sparse_softmax_cross_entropy(SCORES, labels, torch.ones(4))


def test_unknown_reductions_are_refused() -> None:
    labels = torch.zeros(3, dtype=torch.int64)
    for loss in (softmax_cross_entropy_loss, negative_log_likelihood_loss):
        with pytest.raises(ValueError, match="must be one of mean, sum, none"):
            loss(SCORES, labels, reduction="max")
    with pytest.raises(ValueError, match="unknown reduction 'max'"):
        softmax_cross_entropy(SCORES, SCORES, reduction="max")


def test_several_ignored_labels_are_refused() -> None:
    labels = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="a single value is needed"):
        softmax_cross_entropy_loss_internal(SCORES, labels, None, [1, 2])


@pytest.mark.parametrize("shape", [(9, 5), (4, 5, 3)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_blocks_of_rows_give_what_all_rows_give(
    shape: tuple[int, ...], reduction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, where log probabilities are made for as many rows as its cache holds."""
    scores = torch.randn(shape).to(torch.bfloat16)
    labels = torch.randint(0, 5, (shape[0], *shape[2:]))
    labels[1] = -1
    dy = torch.randn(labels.shape) if reduction == "none" else torch.ones(())
    given = (scores, labels, dy, torch.rand(5) + 0.5)
    whole = with_grad.cross_entropy_with_grad(*given, reduction=reduction)
    monkeypatch.setattr(blocks, "size", lambda: 2 * 5 * 3)
    parts = with_grad.cross_entropy_with_grad(*given, reduction=reduction)
    for found, expected in zip(parts, whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert not whole[0][1].any() and whole[0][0].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_ignored_rows_of_no_numbers_are_left_out(
    dtype: torch.dtype, reduction: str, weighted: bool
) -> None:
    scores, labels = torch.randn(6, 5).to(dtype), torch.tensor([0, 4, 2, 4, 1, 3])
    scores[[1, 3]] = torch.nan
    weights = torch.rand(5).to(dtype) if weighted else None
    options = {"ignore_index": 4, "reduction": reduction}
    dy = torch.rand(6 if reduction == "none" else (), dtype=dtype)
    loss, log_prob = softmax_cross_entropy_loss(scores, labels, weights, **options)
    grad = softmax_cross_entropy_loss_grad(dy, log_prob, labels, weights, **options)
    both, fused = with_grad.cross_entropy_with_grad(scores, labels, dy, weights, **options)
    wide = scores.double().nan_to_num().requires_grad_()
    w = torch.ones(5).double() if weights is None else weights.double()
    true = torch.nn.functional.cross_entropy(wide, labels, w, **options)
    (expected,) = torch.autograd.grad(true, wide, dy.double())
    for found in (loss, fused):
        torch.testing.assert_close(found, true.to(dtype))
    # a log probability of 8 bits, off by 2^-9 of itself, moves p by 2^-9 p |log p|, 0.0007 at most
    close = {"rtol": 1.6e-2, "atol": 1e-3} if dtype is torch.bfloat16 else {}
    torch.testing.assert_close(grad, expected.to(dtype), **close)
    torch.testing.assert_close(both, expected.to(dtype))
    assert not grad[[1, 3]].any() and not both[[1, 3]].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_classes_before_other_axes(dtype: torch.dtype, reduction: str) -> None:
    scores, labels = torch.randn(3, 5, 2, 4).to(dtype), torch.randint(0, 4, (3, 2, 4))
    labels[1, 0, 2] = 4
    scores[1, :, 0, 2] = torch.nan
    options = {"ignore_index": 4, "reduction": reduction}
    dy = torch.rand(labels.shape if reduction == "none" else (), dtype=dtype)
    grad, loss = with_grad.cross_entropy_with_grad(scores, labels, dy, **options)
    wide = scores.double().nan_to_num().requires_grad_()
    true = torch.nn.functional.cross_entropy(wide, labels, **options)
    (expected,) = torch.autograd.grad(true, wide, dy.double())
    torch.testing.assert_close(loss, true.to(dtype))
    torch.testing.assert_close(grad, expected.to(dtype))
    assert not grad[1, :, 0, 2].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_losses_without_any_weight_are_zero(dtype: torch.dtype) -> None:
    scores, labels = torch.randn(3, 4).to(dtype), torch.tensor([1, 2, 1])
    weights, dy = torch.tensor([1.0, 0.0, 0.0, 1.0]).to(dtype), torch.ones((), dtype=dtype)
    loss, log_prob = softmax_cross_entropy_loss(scores, labels, weights)
    grad = softmax_cross_entropy_loss_grad(dy, log_prob, labels, weights)
    both, fused = with_grad.cross_entropy_with_grad(scores, labels, dy, weights)
    assert not any(t.any() for t in (loss, grad, both, fused))


def test_losses_of_16_bits_are_right_where_the_probability_is_none() -> None:
    scores = torch.tensor([[300.0, 0.0, 100.0], [1.0, 2.0, 3.0]], dtype=torch.bfloat16)
    labels, dy = torch.tensor([1, 0]), torch.ones(2)
    options = {"output_type": 1, "reduction": "none"}
    _, loss = with_grad.cross_entropy_with_grad(scores, labels, dy, **options)
    true = torch.nn.functional.cross_entropy(scores.double(), labels, reduction="none")
    torch.testing.assert_close(loss, true.float())
