"""Triton kernels beside torch: interpreted on the CPU, and as they are on a GPU."""

import importlib
from types import ModuleType

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


def near(ours: Tensor, torchs: Tensor, true: Tensor) -> None:
    """As close to the truth as twice torch's own distance."""
    scale = true.norm()
    error, allowed = (ours.double() - true).norm() / scale, (torchs.double() - true).norm() / scale
    assert ours.shape == true.shape and ours.dtype == torchs.dtype
    assert error <= 2 * allowed + 1e-7, f"{error} is more than twice {allowed}"


def drawn(*shape: int, device: str, dtype: str) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device, getattr(torch, dtype))


SHAPES = [
    ((5, 7, 130), -1),
    ((3, 100), 1),
    ((4, 33, 50), 1),
    ((2, 600, 70), -2),
    ((3, 5, 7), 0),
    ((1, 3), 1),
    ((2, 9000), 1),
]
LONG = [((3, 40000), 1), ((2, 3000, 40), 1), ((70, 131072), 1), ((2, 2000, 129), 1)]


@on_devices
@pytest.mark.parametrize("log", [False, True])
def test_softmax_gradients(device: str, dtype: str, log: bool) -> None:
    for shape, axis in SHAPES + (LONG if device == "cuda" else []):
        dy, x = (drawn(*shape, device=device, dtype=dtype) for _ in range(2))
        forward = torch.log_softmax if log else torch.softmax
        y = forward(x.double(), axis).to(x.dtype)
        ours = module("softmax_grad").softmax_grad(dy, y, axis, log=log)
        native = aten._log_softmax_backward_data if log else aten._softmax_backward_data
        wide = [t.double() for t in (dy, y)]
        near(ours, native(dy, y, axis, dy.dtype), native(*wide, axis, torch.float64))


@on_devices
@pytest.mark.parametrize(("rows", "columns"), [(37, 100), (300, 768), (3, 5000), (1, 3)])
def test_layer_normalization_gradient(device: str, dtype: str, rows: int, columns: int) -> None:
    x = drawn(rows, columns, device=device, dtype=dtype) * 2 + 1
    dy = drawn(rows, columns, device=device, dtype=dtype)
    w = drawn(columns, device=device, dtype=dtype)

    def native(kind: torch.dtype) -> list[Tensor]:
        a, b, c = (t.to(kind) for t in (dy, x, w))
        _, mean, inverse = torch.native_layer_norm(b, [columns], c, c, 1e-5)
        return aten.native_layer_norm_backward(a, b, [columns], mean, inverse, c, c, [True] * 3)

    _, mean, inverse = torch.native_layer_norm(x.double(), [columns], None, None, 1e-5)
    dx, sums = module("layer_norm_grad").norm_grad(dy, x, w, mean.float(), inverse.float())
    theirs, true = native(torch.float32), native(torch.float64)
    for ours, other, exact in zip((dx, *sums), theirs, true, strict=True):
        near(ours, other.to(x.dtype), exact)


@on_devices
def test_cross_entropy(device: str, dtype: str) -> None:
    quick = module("cross_entropy")
    for rows, classes in [(6, 100), (4, 5000), (1, 2), *([(9, 50304)] if device == "cuda" else [])]:
        scores = drawn(rows, classes, device=device, dtype=dtype) * 3
        labels = torch.arange(rows, device=device) * 7 % classes
        share = torch.linspace(1, 0, rows, device=device)
        true = torch.log_softmax(scores.double(), 1)
        log_prob, picked = quick.log_probabilities(scores, labels, scores.dtype)
        near(log_prob, torch.log_softmax(scores, 1), true)
        torch.testing.assert_close(
            picked, true.gather(1, labels[:, None])[:, 0].float(), rtol=1e-5, atol=1e-6
        )
        hot = torch.nn.functional.one_hot(labels, classes)
        gradient = (true.exp() - hot) * share[:, None]
        plain = (torch.log_softmax(scores.float(), 1).exp() - hot) * share[:, None]
        near(quick.loss_and_grad(scores, labels, share)[0], plain.to(scores.dtype), gradient)
        gradient = (log_prob.double().exp() - hot) * share[:, None]
        plain = (log_prob.float().exp() - hot) * share[:, None]
        near(quick.grad(log_prob, labels, share), plain.to(scores.dtype), gradient)


@on_devices
def test_cross_entropy_of_masked_scores_and_wrong_labels(device: str, dtype: str) -> None:
    quick = module("cross_entropy")
    scores = drawn(3, 9000, device=device, dtype=dtype)
    scores[:, :5000] = float("-inf")
    labels = torch.tensor([6000, -1, 9000], device=device)
    share = torch.ones(3, device=device)
    log_prob, picked = quick.log_probabilities(scores, labels, scores.dtype)
    near(
        log_prob[:, 5000:], *(torch.log_softmax(t, 1)[:, 5000:] for t in (scores, scores.double()))
    )
    assert bool((log_prob[:, :5000] == float("-inf")).all())
    assert picked.isfinite().tolist() == [True, False, False]
    for gradient in (
        quick.loss_and_grad(scores, labels, share)[0],
        quick.grad(log_prob, labels, share),
    ):
        assert gradient.isfinite().all(1).tolist() == [True, False, False]
        assert bool((gradient[0, :5000] == 0).all())


@on_devices
@pytest.mark.parametrize("size", [(300, 40, 70), (1000, 3, 16), (64, 1, 8), (31, 100, 5)])
def test_sums_of_rows_with_the_same_index(
    device: str, dtype: str, size: tuple[int, int, int]
) -> None:
    count, rows, columns = size
    generator = torch.Generator().manual_seed(count)
    index = torch.randint(0, rows, (count,), generator=generator).to(device)
    values = drawn(count, columns, device=device, dtype=dtype)
    true = values.new_zeros(rows + 2, columns, dtype=torch.float64)
    true.index_add_(0, index, values.double())
    ours = module("segments").sum_rows(index, values, rows + 2)
    plain = values.new_zeros(rows + 2, columns, dtype=torch.float32)
    near(ours, plain.index_add_(0, index, values.float()).to(values.dtype), true)
    assert torch.equal(ours, module("segments").sum_rows(index, values, rows + 2))


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
def test_adam_w_over_many_tensors(device: str, dtype: str) -> None:
    many = module("many")
    shapes = [(5000,), (3, 7), (70, 100)]
    weights, gradients = ([drawn(*s, device=device, dtype=dtype) for s in shapes] for _ in range(2))
    moments = [[torch.full(s, x, device=device) for s in shapes] for x in (0.1, 0.2)]
    expected = []
    for w, g in zip(weights, gradients, strict=True):
        w, g = w.double(), g.double()
        m, v = 0.9 * 0.1 + 0.1 * g, 0.99 * 0.2 + 0.01 * g * g
        step = m / (0.3 * (v.sqrt() / 0.5 + 1e-8))
        expected.append((w - 0.01 * 0.1 * w - 0.01 * step, m, v))
    many.adam_w([weights, gradients, *moments], 0.01, 0.1, (0.9, 0.99), (0.3, 0.5), 1e-8)
    for found, exact in zip(zip(weights, *moments, strict=True), expected, strict=True):
        for ours, true in zip(found, exact, strict=True):
            near(ours, true.float().to(ours.dtype), true)
