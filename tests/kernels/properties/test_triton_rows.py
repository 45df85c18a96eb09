"""Triton kernels over rows of a matrix: any number of rows and columns, and space between them."""

from typing import Any
from unittest import mock

import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.fast import module
from kernels.properties.beside import Tensor, beside, drawn, kinds, spaced
from kernels.properties.strategies import flags, layouts, shapes

functional = torch.nn.functional
heights, widths = st.integers(1, 30), st.integers(1, 300)
EPSILON = 1e-5


def back(y: Tensor, dy: Tensor, *inputs: Tensor) -> list[Tensor]:
    """Gradients of some inputs."""
    return [*torch.autograd.grad(y, inputs, dy)]


@given(rows=heights, columns=widths, kind=kinds, other=kinds, centred=st.booleans(), data=st.data())
def test_normalized_rows(
    rows: int, columns: int, kind: torch.dtype, other: torch.dtype, centred: bool, data: Any
) -> None:
    """With a sum before, or a shift behind; of vectors in another type than the rows."""
    x, skip = (data.draw(drawn(rows, columns, kind=kind)) for _ in range(2))
    scale, shift, extra = (data.draw(drawn(columns, kind=other)) for _ in range(3))
    forms = data.draw(st.tuples(flags, flags, flags))
    skip, extra, shift = (
        t if n else None for t, n in zip((skip, extra, shift), forms, strict=True)
    )
    if skip is None:
        extra = None
    few = data.draw(st.sampled_from([1 << 20, 0]))

    def reference(x: Tensor, skip: Any, extra: Any, scale: Tensor, shift: Any) -> list[Tensor]:
        total = x if skip is None else x + skip
        total = total if extra is None else total + extra
        mean = total.mean(1, keepdim=True) if centred else 0
        apart = total - mean
        inverse = 1 / (apart.square().mean(1, keepdim=True) + EPSILON).sqrt()
        y = apart * inverse * scale
        return [y if shift is None else y + shift, inverse[:, 0]]

    def run() -> tuple[Tensor, Tensor]:
        forms = {"centred": centred, "skip": skip, "extra": extra}
        with mock.patch.object(module("norm"), "FEW", few):
            found = module("norm").normalize(x, scale, shift, EPSILON, **forms)
        return found.y, found.inverse

    beside(run, reference, (x, skip, extra, scale, shift), (kind, torch.float32))


@given(
    rows=st.integers(1, 12),
    columns=widths,
    kind=kinds,
    other=kinds,
    centred=st.booleans(),
    data=st.data(),
)
def test_gradients_of_normalized_rows(
    rows: int, columns: int, kind: torch.dtype, other: torch.dtype, centred: bool, data: Any
) -> None:
    x, dy, residual = (data.draw(drawn(rows, columns, kind=kind)) for _ in range(3))
    scale = data.draw(drawn(columns, kind=other))
    summed = data.draw(st.booleans())
    wide = x.double()
    mean = wide.mean(1, keepdim=True) if centred else torch.zeros(rows, 1, dtype=torch.float64)
    inverse = 1 / ((wide - mean).square().mean(1) + EPSILON).sqrt()
    statistics = mean[:, 0].float() if centred else None, inverse.float()

    def reference(
        dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor, inv: Tensor, residual: Tensor
    ) -> list[Tensor]:
        inv = inv[:, None]
        normal, inner = (x - mean) * inv, dy * scale
        along = inner.mean(1, keepdim=True) if centred else 0
        slope = (inner * normal).mean(1, keepdim=True)
        dx = inv * (inner - along - normal * slope) + residual
        sums = [(dy * normal).sum(0), *([dy.sum(0)] if centred else [])]
        return [dx, torch.stack(sums)]

    def run() -> Any:
        dx, sums = module("norm_grad").norm_grad(dy, x, scale, *statistics, residual, summed)
        if summed:  # of values as they are stored
            beside(lambda: sums[-1], lambda dx: dx.sum(0), (dx,), other)
        return dx, sums[: 1 + centred]

    def terms(
        dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor, inv: Tensor, residual: Tensor
    ) -> list[Tensor]:
        normal, inner = (x.abs() + mean.abs()) * inv[:, None], (dy * scale).abs()
        along, slope = inner.mean(1, keepdim=True), (inner * normal).mean(1, keepdim=True)
        dx = inv[:, None] * (inner + along + normal * slope) + residual.abs()
        return [dx, (dy.abs() * normal).sum(0)]

    given = dy, x, scale, mean.float(), inverse.float(), residual
    beside(run, reference, given, (kind, other), terms=terms)


@given(shape=shapes(1, 4, smallest=1), kind=kinds, log=st.booleans(), data=st.data())
def test_softmax_along_any_axis(
    shape: tuple[int, ...], kind: torch.dtype, log: bool, data: Any
) -> None:
    """And its gradient, at results in the same type; some rows are longer."""
    shape = (*shape[:-1], data.draw(st.one_of(st.just(shape[-1]), widths)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x, dy = (data.draw(drawn(*shape, kind=kind)) for _ in range(2))
    formula = torch.log_softmax if log else torch.softmax
    y = formula(x.double(), axis).to(kind)

    def gradient(dy: Tensor, y: Tensor) -> Tensor:
        if log:
            return dy - y.exp() * dy.sum(axis, keepdim=True)
        return y * (dy - (y * dy).sum(axis, keepdim=True))

    forward, backward = module("softmax"), module("softmax_grad")
    assert forward.takes(x, axis) and backward.takes(y, axis)
    beside(lambda: forward.softmax(x, axis, log=log), lambda x: formula(x, axis), (x,), kind)
    beside(lambda: backward.softmax_grad(dy, y, axis, log=log), gradient, (dy, y), kind)


@given(
    rows=st.integers(1, 5),
    classes=widths,
    kind=kinds,
    reduction=st.sampled_from(["mean", "sum", "none"]),
    layout=layouts,
    data=st.data(),
)
def test_cross_entropy(
    rows: int, classes: int, kind: torch.dtype, reduction: str, layout: int, data: Any
) -> None:
    """Of rows with space between them, into others; some labels are ignored."""
    quick = module("cross_entropy")
    scores = spaced(data.draw(drawn(rows, classes, kind=kind)) * 3, layout)
    generator = torch.Generator().manual_seed(layout)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    labels = labels.to(data.draw(st.sampled_from([torch.int64, torch.int32])))
    labels[torch.rand(rows, generator=generator) < 0.2] = -1
    weighted = data.draw(st.booleans())
    weights = data.draw(drawn(classes, kind=kind)).abs() if weighted else None
    dy = data.draw(drawn(*([rows] if reduction == "none" else []))).abs()
    to = quick.Labels(labels, weights, -1, reduction)

    def reference(scores: Tensor, dy: Tensor, weights: Any) -> list[Tensor]:
        x, found = scores.requires_grad_(), labels.long()
        each = functional.cross_entropy(x, found, weights, ignore_index=-1, reduction="none")
        shares = (found >= 0) if weights is None else (found >= 0) * weights[found.clamp(0)]
        loss = each if reduction == "none" else each.sum()
        if reduction == "mean":
            loss = loss / shares.sum() if shares.any() else loss * 0
        return [*torch.autograd.grad(loss, x, dy), loss.detach()]

    out = spaced(torch.zeros_like(scores), layout + 1)
    beside(
        lambda: quick.loss_and_grad(scores.clone(), to, dy, torch.float32, out),
        reference,
        (scores, dy, weights),
        (kind, torch.float32),
    )
    beside(
        lambda: quick.loss(scores, to, torch.float32),
        lambda *all_of: [reference(*all_of)[1], torch.log_softmax(all_of[0].detach(), 1)],
        (scores, dy, weights),
        torch.float32,
    )


@given(rows=heights, columns=widths, kind=kinds, count=st.integers(2, 4), data=st.data())
def test_sums_of_columns(rows: int, columns: int, kind: torch.dtype, count: int, data: Any) -> None:
    """Alone, of matrices side by side, of what a mask has left, and of a gradient of Gelu."""
    x, dy = (data.draw(drawn(rows, columns, kind=kind)) for _ in range(2))
    columns_of, sums = module("columns"), module("sums")
    beside(lambda: columns_of.column_sums(x, columns), lambda x: x.sum(0), (x,), kind)
    parts = [x, dy, x, dy][:count]
    beside(
        lambda: sums.side_by_side(parts),
        lambda *parts: [torch.cat(parts, 1), torch.cat(parts, 1).sum(0)],
        parts,
        kind,
    )
    kept = dy > 0
    dx, total = sums.drop_grad(x, kept, 0.25)
    beside(lambda: dx, lambda x: torch.where(kept, x / 0.75, 0.0), (x,), kind)
    # sums are those of values as they are stored
    beside(lambda: total, lambda dx: dx.sum(0), (dx,), kind)
    bias = data.draw(st.one_of(st.none(), drawn(columns, kind=kind)))

    def slopes(dy: Tensor, x: Tensor, bias: Any) -> Tensor:
        x = (x if bias is None else x + bias).requires_grad_()
        return back(functional.gelu(x), dy, x)[0]

    given = dy, x, bias
    dx, total = columns_of.gelu_grad_and_sums(*given, "none")
    beside(lambda: dx, slopes, given, kind)
    beside(lambda: total, lambda dx: dx.sum(0), (dx,), kind)


@given(
    rows=st.integers(1, 20),
    columns=st.integers(1, 90),
    kind=kinds,
    name=st.sampled_from(["gelu", "gelu_tanh", "swish", "sigmoid", "relu"]),
    layout=layouts,
    data=st.data(),
)
def test_gated_rows(
    rows: int, columns: int, kind: torch.dtype, name: str, layout: int, data: Any
) -> None:
    """Each matrix has its own space between rows; gradients may take the place of the data."""
    quick, alpha = module("gated"), 1.5
    gate, up, dy = (
        spaced(data.draw(drawn(rows, columns, kind=kind)), layout + n) for n in range(3)
    )
    formulas = {
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "swish": lambda x: x * torch.sigmoid(alpha * x),
        "sigmoid": torch.sigmoid,
        "relu": torch.relu,
    }

    def slopes(dy: Tensor, gate: Tensor, up: Tensor) -> list[Tensor]:
        return back(formulas[name](gate.requires_grad_()) * up.requires_grad_(), dy, gate, up)

    beside(
        lambda: quick.gated(gate, up, name, alpha),
        lambda gate, up: formulas[name](gate) * up,
        (gate, up),
        kind,
    )
    apart = beside(
        lambda: quick.gated_grad(dy, gate, up, name, alpha), slopes, (dy, gate, up), kind
    )
    both = spaced(gate, layout), spaced(up, layout + 1)
    within = quick.gated_grad(dy, *both, name, alpha, into=both)
    assert all(map(torch.equal, within, apart))
    for half in within:  # spaces stay as they were
        whole = half.as_strided((rows, half.stride(0)), (half.stride(0), 1))
        assert whole[:, columns:].isnan().all()
