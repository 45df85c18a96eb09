"""Losses over classes: values, gradients by autograd, ignored labels, and labels out of range."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.properties.judge import judge
from kernels.properties.strategies import (
    Draw,
    Shape,
    float_types,
    index_types,
    indices,
    layouts,
    numbers,
    row,
    scalar,
    shapes,
    shares,
)
from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.loss.cross_entropy import (
    softmax_cross_entropy_loss,
    softmax_cross_entropy_loss_grad,
)
from onnxtrain.kernels.loss.last_axis import (
    softmax_cross_entropy_grad,
    sparse_softmax_cross_entropy,
    sparse_softmax_cross_entropy_grad,
)
from onnxtrain.kernels.loss.likelihood import negative_log_likelihood_loss
from onnxtrain.testing.case import given as fixed
from onnxtrain.types import DataType

Tensor = torch.Tensor
reductions = st.sampled_from(["mean", "sum", "none"])


@st.composite
def labelled(draw: Draw) -> tuple[Tensor, Tensor, Tensor | None, int]:
    """Scores with classes on axis 1, labels, weights or none, and the label that is ignored."""
    batch, *rest = draw(shapes(1, 3, smallest=1, largest=4))
    classes = draw(st.integers(1, 6))
    scores = draw(numbers((batch, classes, *rest), scale=3.0))
    labels = draw(indices((batch, *rest), classes, negative=False))
    ignored = draw(st.sampled_from([-1, 0, 100]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    dropped = torch.rand(labels.shape, generator=generator) < draw(st.sampled_from([0, 0.3, 1]))
    labels = labels.masked_fill(dropped, ignored)
    weights = draw(st.one_of(st.none(), shares((classes,))))
    return scores, labels, weights, ignored


def log_softmax(x: Tensor, axis: int = 1) -> Tensor:
    """x - ln Σ eˣ, shifted by the largest element."""
    shifted = x - x.amax(axis, keepdim=True)
    return shifted - shifted.exp().sum(axis, keepdim=True).log()


def each_of(log_prob: Tensor, labels: Tensor, weights: Tensor | None, ignored: int) -> Any:
    """-log_prob[label]·w and w for each label, one after the other."""
    flat = log_prob.movedim(1, -1).reshape(-1, log_prob.shape[1])
    losses, sizes = [], []
    for line, label in zip(flat, labels.reshape(-1).tolist(), strict=True):
        weight = 1.0 if weights is None or label == ignored else weights[label]
        weight = 0.0 * flat.sum() if label == ignored else weight + 0.0 * flat.sum()
        losses.append(-line[label] * weight if label != ignored else weight)
        sizes.append(weight)
    return torch.stack(losses).reshape(labels.shape), torch.stack(sizes)


def loss_of(scores: Tensor, labels: Tensor, weights: Any, ignored: int, how: str) -> Tensor:
    """The reduced loss; a mean over nothing is 0."""
    losses, sizes = each_of(log_softmax(scores), labels, weights, ignored)
    if how == "none":
        return losses
    total = losses.sum()
    if how == "mean":
        total = total / sizes.sum() if float(sizes.sum().detach()) else total * 0.0
    return total


def loss_inputs(drawn: Any, kind: DataType) -> list[Any]:
    scores, labels, weights, _ = drawn
    return [scores, fixed(labels, kind), weights]


@given(drawn=labelled(), how=reductions, kind=index_types, dtype=float_types, layout=layouts)
def test_softmax_cross_entropy_loss(
    drawn: Any, how: str, kind: DataType, dtype: DataType, layout: int, device: str
) -> None:
    ignored = drawn[3]

    def reference(scores: Tensor, labels: Tensor, w: Any, **_: Any) -> tuple[Tensor, Tensor]:
        return loss_of(scores, labels, w, ignored, how), log_softmax(scores)

    def terms(scores: Tensor, labels: Tensor, w: Any, **_: Any) -> tuple[Tensor, Tensor]:
        # A logarithm near 0 is as exact as the scores that it is the difference of.
        size = scores.abs() + 1
        factor = labels.numel() if how == "sum" else 1
        return loss_of(scores, labels, w, ignored, how).abs() + factor * size.amax(), size

    case = row(
        "SoftmaxCrossEntropyLoss",
        loss_inputs(drawn, kind),
        reference,
        attributes={"ignore_index": ignored, "reduction": how},
        outputs=2,
        domain="",
        opset=13,
    )
    judge(case, dtype, device, layout, exact=False, terms=terms)


def _as_grad(size: Shape, how: str) -> Shape:
    return size if how == "none" else ()


def gradient_of(
    log_prob: Tensor, labels: Tensor, weights: Any, ignored: int, how: str, dy: Tensor
) -> Tensor:
    """d = dy·w/norm·(e^log_prob - [class == label]) row by row."""
    _, sizes = each_of(log_prob, labels, weights, ignored)
    norm = sizes.sum() if how == "mean" else torch.ones((), dtype=log_prob.dtype)
    each = dy.expand(labels.shape).reshape(-1) * sizes
    each = each / norm if float(norm) else each * 0.0
    flat = log_prob.movedim(1, -1).reshape(-1, log_prob.shape[1])
    found = []
    for line, label, share in zip(flat, labels.reshape(-1).tolist(), each, strict=True):
        one = torch.zeros_like(line)
        if label != ignored:
            one[label] = 1.0
        found.append(share * (line.exp() - one) if label != ignored else one)
    made = torch.stack(found).reshape(*labels.shape, log_prob.shape[1])
    return made.movedim(-1, 1)


def gradient_terms(dy: Tensor, log_prob: Tensor, *_: Any, **__: Any) -> Tensor:
    """A probability and the 1 that is subtracted from it, times dy."""
    return dy.abs().amax().expand(log_prob.shape)


@given(drawn=labelled(), how=reductions, data=st.data(), dtype=float_types, layout=layouts)
def test_softmax_cross_entropy_loss_grad(
    drawn: Any, how: str, data: Any, dtype: DataType, layout: int, device: str
) -> None:
    scores, labels, weights, ignored = drawn
    dy = data.draw(numbers(_as_grad(labels.shape, how)))
    case = row(
        "SoftmaxCrossEntropyLossGrad",
        [dy, log_softmax(scores), fixed(labels, data.draw(index_types)), weights],
        lambda dy, p, labels, w, **_: gradient_of(p, labels, w, ignored, how, dy),
        attributes={"ignore_index": ignored, "reduction": how},
    )
    judge(case, dtype, device, layout, exact=False, terms=gradient_terms)


@given(drawn=labelled(), how=reductions, data=st.data(), dtype=float_types, layout=layouts)
def test_softmax_cross_entropy_loss_internal(
    drawn: Any, how: str, data: Any, dtype: DataType, layout: int, device: str
) -> None:
    ignored = drawn[3]
    to = data.draw(st.sampled_from([None, DataType.FLOAT, DataType.FLOAT16]))

    def reference(scores: Tensor, labels: Tensor, w: Any, *_: Any, **__: Any) -> Any:
        return loss_of(scores, labels, w, ignored, how), log_softmax(scores)

    def terms(scores: Tensor, labels: Tensor, w: Any, *_: Any, **__: Any) -> Any:
        size = scores.abs() + 1
        factor = labels.numel() if how == "sum" else 1
        return loss_of(scores, labels, w, ignored, how).abs() + factor * size.amax(), size

    attributes: dict[str, Any] = {"reduction": how}
    if to is not None:
        attributes["output_type"] = int(to)
    ignore = scalar(ignored, DataType.INT64, vector=data.draw(st.booleans()))
    case = row(
        "SoftmaxCrossEntropyLossInternal",
        [*loss_inputs(drawn, data.draw(index_types)), ignore],
        reference,
        attributes=attributes,
        outputs=2,
    )
    results = judge(case, dtype, device, layout, exact=False, terms=terms)
    assert {r.dtype for r in results} == {to_torch(dtype if to is None else to)}


@given(drawn=labelled(), how=reductions, data=st.data(), dtype=float_types, layout=layouts)
def test_softmax_cross_entropy_loss_internal_grad(
    drawn: Any, how: str, data: Any, dtype: DataType, layout: int, device: str
) -> None:
    scores, labels, weights, ignored = drawn
    dy = data.draw(numbers(_as_grad(labels.shape, how)))
    bias = data.draw(numbers(scores.shape)) if data.draw(st.booleans()) else None

    def reference(dy: Tensor, p: Tensor, labels: Tensor, w: Any, *rest: Any, **_: Any) -> Tensor:
        grad = gradient_of(p, labels, w, ignored, how, dy)
        return grad + rest[1] if bias is not None else grad

    case = row(
        "SoftmaxCrossEntropyLossInternalGrad",
        [
            dy,
            log_softmax(scores),
            fixed(labels, data.draw(index_types)),
            weights,
            scalar(ignored, DataType.INT64),
            *([] if bias is None else [bias]),
        ],
        reference,
        attributes={"reduction": how},
    )
    judge(case, dtype, device, layout, exact=False, terms=gradient_terms)


@given(drawn=labelled(), how=st.sampled_from(["mean", "sum"]))
def test_the_gradient_is_that_of_autograd(drawn: Any, how: str, device: str) -> None:
    scores, labels, weights, ignored = drawn
    leaf = scores.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss_of(leaf, labels, weights, ignored, how), leaf)
    inputs = [None if t is None else t.to(device) for t in (scores, labels, weights)]
    options: Any = {"ignore_index": ignored, "reduction": how}
    _, log_prob = softmax_cross_entropy_loss(*inputs, **options)  # type: ignore[arg-type]
    one = torch.ones((), dtype=torch.float64, device=device)
    grad = softmax_cross_entropy_loss_grad(one, log_prob, *inputs[1:], **options)  # type: ignore[arg-type]
    torch.testing.assert_close(grad.cpu(), expected)
    sums = grad.sum(1)
    torch.testing.assert_close(sums, torch.zeros_like(sums))


@st.composite
def last_axis(draw: Draw) -> tuple[Tensor, Tensor, Tensor | None]:
    """Scores with classes on the last axis, labels, and a weight for each label or none."""
    rows = draw(shapes(1, 3, smallest=1, largest=4))
    classes = draw(st.integers(1, 6))
    scores = draw(numbers((*rows, classes), scale=3.0))
    labels = draw(indices(rows, classes, negative=False))
    return scores, labels, draw(st.one_of(st.none(), shares(rows)))


def sparse_loss(scores: Tensor, labels: Tensor, weights: Any, how: str) -> Tensor:
    """-log_softmax[label]·weight."""
    w = torch.ones(labels.shape, dtype=scores.dtype) if weights is None else weights
    picked = log_softmax(scores, -1).gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)
    each = -picked * w
    return each if how == "none" else each.sum() / (w.sum() if how == "mean" else 1)


@given(drawn=last_axis(), how=reductions, data=st.data(), dtype=float_types, layout=layouts)
def test_sparse_softmax_cross_entropy(
    drawn: Any, how: str, data: Any, dtype: DataType, layout: int, device: str
) -> None:
    scores, labels, weights = drawn

    def reference(x: Tensor, labels: Tensor, w: Any = None, **_: Any) -> tuple[Tensor, Tensor]:
        return sparse_loss(x, labels, w, how), log_softmax(x, -1)

    def terms(x: Tensor, labels: Tensor, w: Any = None, **_: Any) -> tuple[Tensor, Tensor]:
        size = x.abs() + 1
        return size.amax() * (labels.numel() if how == "sum" else 1), size

    inputs = [scores, fixed(labels, data.draw(index_types)), weights]
    case = row(
        "SparseSoftmaxCrossEntropy",
        inputs,
        reference,
        attributes={"reduction": how},
        outputs=2,
        domain="",
        opset=13,
    )
    judge(case, dtype, device, layout, exact=False, terms=terms)


@given(drawn=last_axis(), how=st.sampled_from(["mean", "sum"]))
def test_sparse_gradient_is_that_of_autograd(drawn: Any, how: str, device: str) -> None:
    scores, labels, weights = drawn
    leaf = scores.clone().requires_grad_()
    (expected,) = torch.autograd.grad(sparse_loss(leaf, labels, weights, how), leaf)
    inputs = [None if t is None else t.to(device) for t in (scores, labels, weights)]
    _, log_prob = sparse_softmax_cross_entropy(*inputs, reduction=how)  # type: ignore[arg-type]
    one = torch.ones((), dtype=torch.float64, device=device)
    grad = sparse_softmax_cross_entropy_grad(one, log_prob, *inputs[1:], reduction=how)  # type: ignore[arg-type]
    torch.testing.assert_close(grad.cpu(), expected)


@given(drawn=last_axis(), how=reductions, dtype=float_types, layout=layouts)
def test_softmax_cross_entropy(
    drawn: Any, how: str, dtype: DataType, layout: int, device: str
) -> None:
    scores, labels, _ = drawn
    target = torch.nn.functional.one_hot(labels, scores.shape[-1]).double()

    def reference(x: Tensor, label: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        each = -(label * log_softmax(x, -1)).sum(-1)
        loss = {"none": each, "sum": each.sum(), "mean": each.mean()}[how]
        return loss, log_softmax(x, -1)

    def terms(x: Tensor, label: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        size = x.abs() + 1
        return size.amax() * (labels.numel() if how == "sum" else 1), size

    case = row(
        "SoftmaxCrossEntropy",
        [scores, target],
        reference,
        attributes={"reduction": how},
        outputs=2,
    )
    judge(case, dtype, device, layout, exact=False, terms=terms)
    # With one class certain, the gradient is that of the labels.
    log_prob = log_softmax(scores, -1).to(device)
    dy = torch.ones(_as_grad(labels.shape, how), dtype=torch.float64, device=device)
    dense = softmax_cross_entropy_grad(dy, log_prob, target.to(device), reduction=how)
    sparse = sparse_softmax_cross_entropy_grad(dy, log_prob, labels.to(device), reduction=how)
    torch.testing.assert_close(dense, sparse)


@given(
    classes=st.integers(1, 5),
    beyond=st.integers(0, 2**31 - 9),
    below=st.booleans(),
    count=st.integers(1, 4),
)
def test_a_label_out_of_range_is_named(classes: int, beyond: int, below: bool, count: int) -> None:
    wrong = -2 - beyond if below else classes + beyond
    labels = torch.tensor([0] * (count - 1) + [wrong])
    scores = torch.zeros(count, classes)
    message = f"label value {wrong} at index {count - 1} is out of range"
    one = torch.ones(())
    for call in (
        lambda: softmax_cross_entropy_loss(scores, labels),
        lambda: softmax_cross_entropy_loss_grad(one, scores, labels),
        lambda: sparse_softmax_cross_entropy(scores, labels),
        lambda: sparse_softmax_cross_entropy_grad(one, scores, labels),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    if not below or wrong < -classes:
        with pytest.raises(ValueError, match=message):
            negative_log_likelihood_loss(scores, labels)


@given(drawn=labelled())
def test_a_loss_of_ignored_labels_is_zero(drawn: Any, device: str) -> None:
    scores, labels, weights, ignored = drawn
    nothing = torch.full_like(labels, ignored).to(device)
    weights = None if weights is None else weights.to(device)
    bad = torch.full_like(scores, math.nan).to(device)
    for how in ("mean", "sum"):
        loss, _ = softmax_cross_entropy_loss(
            bad, nothing, weights, ignore_index=ignored, reduction=how
        )
        assert float(loss) == 0
