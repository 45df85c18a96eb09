"""Triton kernels beside torch: interpreted on the CPU, and as they are on a GPU."""

import functools
import importlib
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
TYPES = [
    (device, dtype)
    for device in ("cpu", "cuda")
    # the interpreter rounds bfloat16 wrongly
    for dtype in ("float32", "float16", "bfloat16")[: 2 if device == "cpu" else 3]
]
"""Every device with its types."""
on_devices = pytest.mark.parametrize(
    ("device", "dtype"),
    [pytest.param(*pair, marks=[pytest.mark.gpu] if pair[0] == "cuda" else []) for pair in TYPES],
)
aten = torch.ops.aten


def module(name: str) -> ModuleType:
    return importlib.import_module(f"onnxtrain.kernels.fast.{name}")


ROUNDINGS = 4 * 2.0**-24
"""What a chain of a few float32 roundings may cost: one number's distance in torch is luck."""


def near(ours: Tensor, torchs: Tensor, true: Tensor) -> None:
    """As close to the truth as twice torch's own distance."""
    scale = true.norm()
    error, allowed = (ours.double() - true).norm() / scale, (torchs.double() - true).norm() / scale
    assert ours.shape == true.shape and ours.dtype == torchs.dtype
    assert error <= 2 * allowed + ROUNDINGS, f"{error} is more than twice {allowed}"


def drawn(*shape: int, device: str, dtype: str) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device, getattr(torch, dtype))


def norm_sizes(device: str) -> list[tuple[int, int]]:
    larger = [(300, 768), (3, 5000)] if device == "cuda" else []
    return [(37, 100), (1, 3), (300, 3), (90, 33), (11, 520), (5, 256), *larger]


@on_devices
def test_layer_normalization_gradient(device: str, dtype: str) -> None:
    for rows, columns in norm_sizes(device):
        x = drawn(rows, columns, device=device, dtype=dtype) * 2 + 1
        dy = drawn(rows, columns, device=device, dtype=dtype)
        w = drawn(columns, device=device, dtype=dtype)

        def native(
            kind: torch.dtype, dy: Tensor = dy, x: Tensor = x, w: Tensor = w
        ) -> list[Tensor]:
            a, b, c = (t.to(kind) for t in (dy, x, w))
            _, mean, inverse = torch.native_layer_norm(b, c.shape, c, c, 1e-5)
            return aten.native_layer_norm_backward(a, b, c.shape, mean, inverse, c, c, [True] * 3)

        _, mean, inverse = torch.native_layer_norm(x.double(), [columns], None, None, 1e-5)
        statistics = mean.float(), inverse.float()
        dx, sums = module("norm_grad").norm_grad(dy, x, w, *statistics)
        theirs, true = native(torch.float32), native(torch.float64)
        for ours, other, exact in zip((dx, *sums), theirs, true, strict=True):
            near(ours, other.to(x.dtype), exact)
        added, _ = module("norm_grad").norm_grad(dy, x, w, *statistics, x)
        near(added, (theirs[0] + x.float()).to(x.dtype), true[0] + x.double())


@on_devices
@pytest.mark.parametrize("few", [1 << 20, 0])
def test_layer_normalization_of_a_residual_sum(
    device: str, dtype: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module("norm"), "FEW", few)
    for rows, columns in norm_sizes(device):
        x = drawn(rows, columns, device=device, dtype=dtype) * 2 + 1
        skip = drawn(rows, columns, device=device, dtype=dtype)
        w = drawn(columns, device=device, dtype=dtype)
        plain = module("norm").normalize(x, w, w, 1e-5, centred=True)
        exact = torch.native_layer_norm(x.double(), [columns], *[w.double()] * 2, 1e-5)
        theirs = torch.native_layer_norm(x.float(), [columns], *[w.float()] * 2, 1e-5)
        near(plain.y, theirs[0].to(x.dtype), exact[0])
        near(plain.mean, theirs[1][:, 0], exact[1][:, 0])
        near(plain.inverse, theirs[2][:, 0], exact[2][:, 0])
        summed = module("norm").normalize(x, w, w, 1e-5, centred=True, skip=skip, extra=w)
        exact = x.double() + skip.double() + w.double()
        near(summed.total, exact.to(x.dtype), exact)
        exact, theirs = (
            torch.native_layer_norm(t, [columns], *[w.to(t.dtype)] * 2, 1e-5)[0]
            for t in (exact, exact.float())
        )
        near(summed.y, theirs.to(x.dtype), exact)


@on_devices
@pytest.mark.parametrize("few", [1 << 20, 0])
def test_root_mean_square_normalization(
    device: str, dtype: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module("norm"), "FEW", few)
    for rows, columns in norm_sizes(device):
        x, dy = (drawn(rows, columns + i, device=device, dtype=dtype)[:, i:] for i in (0, 1))
        dy = dy.contiguous()
        w = drawn(columns, device=device, dtype=dtype)

        def passes(
            kind: torch.dtype, x: Tensor = x, w: Tensor = w, dy: Tensor = dy
        ) -> tuple[Tensor, ...]:
            a, b = (t.to(kind, copy=True).requires_grad_() for t in (x, w))
            y = torch.nn.functional.rms_norm(a, b.shape, b, 1e-5)
            return (y.detach(), *torch.autograd.grad(y, [a, b], dy.to(kind)))

        found = module("norm").normalize(x, w, None, 1e-5, centred=False)
        dx, sums = module("norm_grad").norm_grad(dy, x, w, None, found.inverse)
        theirs, true = passes(torch.float32), passes(torch.float64)
        for ours, other, exact in zip((found.y, dx, sums[0]), theirs, true, strict=True):
            near(ours, other.to(x.dtype), exact)


@on_devices
@pytest.mark.parametrize("centred", [True, False])
def test_wide_rows_far_from_zero_are_normalized(device: str, dtype: str, centred: bool) -> None:
    far = 100
    for columns in (2049, 4100):
        x = drawn(3, columns, device=device, dtype=dtype) + far
        w, b = (drawn(columns, device=device, dtype=dtype) for _ in range(2))
        found = module("norm").normalize(x, w, b if centred else None, 1e-5, centred=centred)
        wide, weight, shift = (t.double() for t in (x, w, b))
        middle = wide.mean(1, keepdim=True) if centred else 0
        inverse = ((wide - middle).square().mean(1, keepdim=True) + 1e-5).rsqrt()
        torch.testing.assert_close(found.inverse.double(), inverse[:, 0], rtol=5e-7, atol=0)
        expected = (wide - middle) * inverse * weight + (shift if centred else 0)
        # a mean that is off by its last bits moves the whole row
        bits = 4 * far * 2**-24 * weight.abs().max().item()
        near_enough = {"rtol": 2 * torch.finfo(x.dtype).eps, "atol": bits}
        torch.testing.assert_close(found.y.double(), expected, **near_enough)


@on_devices
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(device: str, dtype: str, reduction: str) -> None:
    quick = module("cross_entropy")
    sizes = {"mean": [(6, 100)], "sum": [(4, 603)], "none": [(1, 2)]}[reduction]
    if device == "cuda":
        sizes = [(6, 100), (4, 603), (1, 2), (9, 50304), (5, 50257), (3, 128257), (2000, 70)]
        sizes.append((1030, 41000))  # so many rows of one program are parts of clusters
    for rows, classes in sizes:
        scores = drawn(rows, classes, device=device, dtype=dtype) * 3
        labels = torch.arange(rows, device=device) * 7 % classes
        labels[rows // 2 + 1 :: 3] = -1
        weights = drawn(classes, device=device, dtype="float32").abs() if rows > 4 else None
        dy = torch.rand([rows] if reduction == "none" else [], device=device)
        to = quick.Labels(labels, weights, -1, reduction)

        passes = functools.partial(entropy, labels, weights, dy, reduction)
        true, plain = passes(torch.float64, scores), passes(torch.float32, scores)
        loss, log_prob = quick.loss(scores, to, scores.dtype)
        near(loss, plain[1].to(loss.dtype), true[1])
        near(log_prob, *(torch.log_softmax(t, 1) for t in (scores, scores.double())))
        gradient = quick.grad(dy, log_prob, to)
        near(gradient, *(of_log_prob(log_prob, to, dy, t) for t in (torch.float32, torch.float64)))
        for place in (None, scores, spaced(scores)):
            taken = scores.clone() if place is None else place
            found, loss = quick.loss_and_grad(taken, to, dy, torch.float32, place)
            assert place is None or found is place
            near(found, plain[0].to(scores.dtype), true[0])
            near(loss, plain[1], true[1])


def entropy(
    labels: Tensor,
    weights: Tensor | None,
    dy: Tensor,
    reduction: str,
    kind: torch.dtype,
    scores: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradient and loss by autograd."""
    x = scores.to(kind, copy=True).requires_grad_()
    scale = None if weights is None else weights.to(kind)
    loss = torch.nn.functional.cross_entropy(x, labels, scale, ignore_index=-1, reduction=reduction)
    return torch.autograd.grad(loss, x, dy.to(kind))[0], loss.detach()


def of_log_prob(log_prob: Tensor, to: Any, dy: Tensor, kind: torch.dtype) -> Tensor:
    """dy * w_i / norm * (e^log_prob - [c == label]), computed in a type."""
    labels = to.labels.clamp(0)
    weights = torch.ones_like(labels, dtype=kind)
    if to.weights is not None:
        weights = to.weights[labels].to(kind)
    weights = weights * (to.labels != to.ignore)
    share = dy.to(kind) * weights / (weights.sum() if to.reduction == "mean" else 1)
    hot = torch.nn.functional.one_hot(labels, log_prob.shape[1])
    found = (log_prob.to(kind).exp() - hot) * share[:, None]
    return found if kind is torch.float64 else found.to(log_prob.dtype)


def spaced(x: Tensor) -> Tensor:
    """The same matrix with space between its rows."""
    wide = x.new_empty(x.shape[0], x.shape[1] + 9)
    return wide[:, : x.shape[1]].copy_(x)


@on_devices
def test_cross_entropy_of_masked_scores_and_wrong_labels(device: str, dtype: str) -> None:
    quick = module("cross_entropy")
    scores = drawn(4, 900, device=device, dtype=dtype)
    scores[:, :500] = float("-inf")
    scores[3] = float("nan")
    labels = torch.tensor([600, -1, 900, -7], device=device)
    to = quick.Labels(labels, None, -7, "sum")
    loss, log_prob = quick.loss(scores, to, scores.dtype)
    assert bool(loss.isnan())
    near(
        log_prob[:3, 500:],
        *(torch.log_softmax(t, 1)[:3, 500:] for t in (scores, scores.double())),
    )
    assert bool((log_prob[:3, :500] == float("-inf")).all())
    one = torch.ones((), device=device)
    for gradient in (
        quick.loss_and_grad(scores, to, one, torch.float32)[0],
        quick.grad(one, log_prob, to),
    ):
        assert gradient.isfinite().all(1).tolist() == [True, False, False, True]
        assert bool((gradient[0, :500] == 0).all()) and bool((gradient[3] == 0).all())
    every = quick.Labels(torch.full_like(labels, -7), None, -7, "mean")
    gradient, loss = quick.loss_and_grad(scores, every, one, torch.float32)
    assert float(loss) == 0 and not gradient.any()
    weighted = quick.Labels(labels, torch.ones(900, device=device), -7, "none")
    for each in (
        quick.loss(scores, weighted, scores.dtype)[0],
        quick.loss_and_grad(scores, weighted, one.repeat(4), torch.float32)[1],
    ):
        assert each.isnan().tolist() == [False, True, True, False] and float(each[3]) == 0


@on_devices
def test_one_gradient_for_the_losses_of_all_rows(device: str, dtype: str) -> None:
    """A sum of losses gives each of them the same number, of which there is one in memory."""
    quick, scores = module("cross_entropy"), drawn(5, 70, device=device, dtype=dtype)
    to = quick.Labels(torch.arange(5, device=device), None, -1, "none")
    dy = torch.tensor([2.0, 9.0, 9.0, 9.0, 9.0], device=device)
    passes = [
        lambda dy: quick.loss_and_grad(scores, to, dy, torch.float32)[0],
        lambda dy: quick.grad(dy, scores.log_softmax(1), to),
    ]
    for gradient in passes:
        assert torch.equal(gradient(dy[:1].expand(5)), gradient(torch.full_like(dy, 2.0)))


@on_devices
@pytest.mark.parametrize("picks", [7, 64, 200])
def test_values_added_at_indices(device: str, dtype: str, picks: int) -> None:
    generator = torch.Generator().manual_seed(picks)
    index = torch.randint(-35, 35, (5, picks), generator=generator).to(device)
    values = drawn(5, picks, device=device, dtype=dtype)
    inside = (index >= -30) & (index < 30)
    true = values.new_zeros(5, 30, dtype=torch.float64)
    true.scatter_add_(1, index % 30, values.double() * inside)
    near(module("scatter").add_at_last(values, index, 5, 30), true.float().to(values.dtype), true)


@on_devices
def test_norm_and_clipping_of_many_tensors(device: str, dtype: str) -> None:
    items = [drawn(*s, device=device, dtype=dtype) for s in [(5000,), (3, 7), (70, 100), (1,)]]
    true = torch.cat([t.double().flatten() for t in items]).norm()
    many = module("many")
    torch.testing.assert_close(many.norm(items), true.float(), rtol=1e-6, atol=1e-6)
    kept = [t.clone() for t in items]
    many.clip(items, 2 * float(true))
    assert all(map(torch.equal, items, kept))
    many.clip(items, 1.0)
    for ours, before in zip(items, kept, strict=True):
        exact = before.double() / true
        near(ours, exact.to(before.dtype), exact)


@on_devices
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("recorded", [False, True])
def test_adam_w_over_many_tensors(device: str, dtype: str, last: bool, recorded: bool) -> None:
    many = module("many")
    shapes = [(5000,), (3, 7), (0,), (70, 100)]
    weights = [drawn(*s, device=device, dtype="float32") for s in shapes]
    gradients, copies = ([drawn(*s, device=device, dtype=dtype) for s in shapes] for _ in range(2))
    gradients[1] = gradients[1].float()
    moments = [[torch.full(s, x, device=device) for s in shapes] for x in (0.1, 0.2)]
    expected = []
    first, root = 1 - 0.9**3, (1 - 0.99**3) ** 0.5
    for w, g in zip(weights, gradients, strict=True):
        w, g = w.double(), g.double() * 0.5
        m, v = 0.9 * 0.1 + 0.1 * g, 0.99 * 0.2 + 0.01 * g * g
        if last:
            w = (w - 0.01 * root / first * m / (v.sqrt() + 1e-3)) * (1 - 0.01 * 0.1)
        else:
            w = w * (1 - 0.01 * 0.1) - 0.01 * m / (first * (v.sqrt() / root + 1e-3))
        expected.append((w, m, v))
    numbers = {"lr": 0.01, "step": 3}
    if recorded:
        numbers = {name: torch.tensor([value], device=device) for name, value in numbers.items()}
    step = functools.partial(
        many.adamw,
        weights,
        gradients,
        *moments,
        **numbers,
        betas=(0.9, 0.99),
        epsilon=1e-3,
        weight_decay=0.1,
        decay_last=last,
        copies=copies,
        factor=torch.tensor(0.5, device=device),
    )
    kept = [w.clone() for w in weights]
    step(skip=torch.tensor(True, device=device))
    assert all(map(torch.equal, weights, kept))
    step(skip=torch.tensor(False, device=device))
    assert all(torch.equal(c, w.to(c.dtype)) for c, w in zip(copies, weights, strict=True))
    for found, exact in zip(zip(weights, *moments, strict=True), expected, strict=True):
        for ours, true in zip(found, exact, strict=True):
            if true.numel():
                near(ours, true.float().to(ours.dtype), true)


@on_devices
def test_gradient_descent_and_checks_over_many_tensors(device: str, dtype: str) -> None:
    many = module("many")
    for rate in (0.1, torch.tensor(0.1, device=device)):
        weights = [drawn(*s, device=device, dtype="float32") for s in [(3000,), (3, 7)]]
        gradients = [drawn(*w.shape, device=device, dtype=dtype) * 2 for w in weights]
        copies = [torch.empty_like(g) for g in gradients]
        exact = [w.double() - 0.1 * g.double() for w, g in zip(weights, gradients, strict=True)]
        many.sgd(weights, gradients, lr=rate, copies=copies)
        for ours, copy, true in zip(weights, copies, exact, strict=True):
            near(ours, true.float(), true)
            assert torch.equal(copy, ours.to(copy.dtype))
    for value, seen in ((1.0, (True, True, True)), (float("inf"), (False, False, True))):
        gradients[0][1500] = value
        kinds = ({}, {"nan": False}, {"infinite": False})
        assert tuple(bool(many.all_finite(gradients, **kind)) for kind in kinds) == seen


@on_devices
def test_sums_of_columns(device: str, dtype: str) -> None:
    for shape in [(3, 50, 70), (200, 64), (1, 5), (3, 16, 70), (32, 37), (6, 1000)]:
        x = drawn(*shape, device=device, dtype=dtype)
        axes = list(range(x.ndim - 1))
        ours = module("columns").column_sums(x, shape[-1])
        near(ours, x.sum(axes), x.double().sum(axes))


def test_sums_of_columns_that_are_left_to_torch() -> None:
    """Without wide loads: columns not in groups of 16, and too few rows to make whole groups."""
    takes = module("columns").takes
    found = {shape: takes(*shape) for shape in [(7, 768), (2, 1000), (7, 1000), (32, 37), (8, 37)]}
    assert [shape for shape, taken in found.items() if not taken] == [(7, 1000), (8, 37)]


@on_devices
@pytest.mark.parametrize("form", ["none", "tanh", "quick"])
@pytest.mark.parametrize("rows", [45, 48])
def test_gelu_with_a_bias(device: str, dtype: str, rows: int, form: str) -> None:
    x, dy = (drawn(3, rows, 70 + i, device=device, dtype=dtype)[..., i:] for i in (0, 1))
    dy, bias = dy.contiguous(), drawn(70, device=device, dtype=dtype)

    def passes(kind: torch.dtype) -> tuple[Tensor, Tensor]:
        total = (x.to(kind) + bias.to(kind)).requires_grad_()
        if form == "quick":
            y = total * torch.sigmoid(1.7 * total)
        else:
            y = torch.nn.functional.gelu(total, approximate=form)
        return y.detach(), torch.autograd.grad(y, total, dy.to(kind))[0]

    (plain, plain_dx), (true, true_dx) = passes(torch.float32), passes(torch.float64)
    near(module("pointwise").gelu(x, bias, form, 1.7), plain.to(x.dtype), true)
    near(module("pointwise").gelu_grad(dy, x, bias, form, 1.7), plain_dx.to(x.dtype), true_dx)
    if form != "quick":
        dx, sums = module("columns").gelu_grad_and_sums(dy, x, bias, form)
        near(dx, plain_dx.to(x.dtype), true_dx)
        # what is summed are the stored values
        near(sums, dx.sum((0, 1)), dx.double().sum((0, 1)))
