"""What losses refuse; their values are rows of the table."""

import pytest
import torch

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
