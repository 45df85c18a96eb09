"""Operators that torch's exporter writes in another way, not at all, or that nodes call."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxtrain import ORTModule
from onnxtrain.errors import GraphError
from ortmodule.modules import rows

pytestmark = pytest.mark.usefixtures("strict")


class Of(nn.Module):
    """A function of what a linear layer gives, and of more."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(4, 5), function

    def forward(self, x: Tensor, *more: Tensor) -> Any:
        return self.function(self.linear(x), *more)


def agree(module: Of, *args: Tensor) -> ORTModule:
    """A wrapped module that gives the results and gradients of torch."""
    wrapped = ORTModule(copy.deepcopy(module))
    for each in (module, wrapped):
        y = each(*args)
        (y * torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape)).sum().backward()
    torch.testing.assert_close(wrapped(*args), module(*args))
    grads = [[p.grad for p in each.parameters()] for each in (wrapped, module)]
    torch.testing.assert_close(*grads)
    return wrapped


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("reduction", "rank"), [("mean", 2), ("sum", 3), ("none", 2), ("mean", 1)])
def test_smoothed_labels(shares: bool, weighted: bool, reduction: str, rank: int) -> None:
    x = rows(6) if rank > 1 else rows(1)[0]
    labels = torch.tensor([3, 1, 4, 0, 3, 2]) if rank > 1 else torch.tensor(2)
    if shares:
        labels = torch.rand(6, 5).softmax(-1) if rank > 1 else torch.rand(5).softmax(-1)
    weight = torch.tensor([0.5, 1.0, 2.0, 0.1, 0.7]) if weighted else None

    def loss(scores: Tensor, labels: Tensor) -> Tensor:
        if rank == 3:
            scores, labels = scores.reshape(3, 2, 5).mT, labels.unflatten(0, (3, 2))
            labels = labels.mT if shares else labels
        options: dict[str, Any] = {"reduction": reduction, "label_smoothing": 0.2}
        if not shares:
            options["ignore_index"] = 3
        return F.cross_entropy(scores, labels, weight, **options)

    agree(Of(loss), x, labels)


def test_a_graph_that_gives_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without our translation, torch's exporter leaves the smoothing out."""
    monkeypatch.setattr("onnxtrain.ortmodule.export.translated", lambda on_gpu: {})
    module = Of(lambda scores, labels: F.cross_entropy(scores, labels, label_smoothing=0.2))
    message = r"result 0 of the exported graph differs from torch's by 0\.\d+ of its size"
    with pytest.raises(GraphError, match=message):
        ORTModule(module)(rows(3), torch.tensor([0, 1, 2]))


def test_an_lstm_with_a_projection_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORTMODULE_FALLBACK_POLICY")

    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 5, proj_size=3)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x)[0]

    module, x = Projected(), torch.randn(3, 2, 4)
    with pytest.warns(UserWarning, match="torch runs Projected itself"):
        torch.testing.assert_close(ORTModule(module)(x), module(x))


class TestRandomNumbers:
    def test_uniform(self) -> None:
        wrapped = ORTModule(Of(lambda y: torch.empty_like(y).uniform_(2, 3)))
        found = wrapped(rows(200))
        assert 2 <= found.min() < 2.1 and 2.9 < found.max() <= 3
        assert not torch.equal(found, wrapped(rows(200)))

    def test_around_a_mean(self) -> None:
        module = Of(lambda y: torch.normal(y, 0.25))
        x = rows(500)
        noise = ORTModule(module)(x) - module.linear(x)
        assert abs(noise.mean()) < 0.03 and abs(noise.std() - 0.25) < 0.03

    def test_orders(self) -> None:
        wrapped = ORTModule(Of(lambda y: torch.randperm(y.shape[0])))
        orders = [wrapped(rows(count)) for count in (20, 20, 30)]
        for order, count in zip(orders, (20, 20, 30), strict=True):
            assert order.dtype is torch.int64 and sorted(order.tolist()) == [*range(count)]
        assert not torch.equal(orders[0], orders[1])

    @pytest.mark.parametrize("training", [True, False])
    def test_slopes(self, training: bool) -> None:
        module = Of(lambda y: (y, F.rrelu(y, 0.25, 0.5, training=training)))
        y, found = ORTModule(module)(rows(100))
        slopes = (found / y)[y < 0]
        assert torch.equal(found[y >= 0], y[y >= 0])
        assert slopes.min() > 0.2499 and slopes.max() < 0.5001
        assert (slopes.std() > 0.03) == training

    def test_distributions_with_gradients(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # torch.compile turns them off for good, should another test have called it
        monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)

        def sampled(y: Tensor) -> Tensor:
            return torch.distributions.Normal(y, torch.ones_like(y)).rsample()

        wrapped = ORTModule(Of(sampled))
        wrapped(rows(3)).sum().backward()
        torch.testing.assert_close(wrapped.linear.bias.grad, torch.full((5,), 3.0))
        with pytest.raises(ValueError, match="scale"):  # they ask again as before
            torch.distributions.Normal(0.0, -1.0)


@torch.library.custom_op("onnxtrain_tests::tripled", mutates_args=())
def tripled(x: Tensor, by: float) -> Tensor:
    return x * 3 * by


tripled.register_fake(lambda x, by: torch.empty_like(x))
tripled.register_autograd(
    lambda ctx, grad: (grad * 3 * ctx.by, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]),
)


def medians(y: Tensor) -> Tensor:
    return y.median(1).values + torch.lgamma(y.abs() + 1).sum(1)


@pytest.mark.parametrize(
    "function",
    [medians, torch.linalg.svdvals, lambda y: tripled(y, 0.5)],
    ids=["two", "one", "own"],
)
def test_what_has_no_translation_is_called_by_a_node(function: Callable[..., Any]) -> None:
    wrapped = agree(Of(function), rows(6))
    (session,) = wrapped._all_sessions()
    assert "PythonOpGrad" in [node.op_type for node in session.model.graph]


def test_what_cannot_be_called_is_named() -> None:
    with warnings.catch_warnings(), pytest.raises(GraphError, match=r"no translation of prims\."):
        warnings.simplefilter("ignore")
        ORTModule(Of(torch.erfinv))(rows(2))


@pytest.mark.parametrize("affine", [False, True])
def test_running_statistics_in_float64(affine: bool) -> None:
    module = nn.BatchNorm1d(4, affine=affine, momentum=0.3).double()
    wrapped = ORTModule(copy.deepcopy(module))
    for n in (2, 3, 4):
        x = torch.randn(n, 4, dtype=torch.float64) * 3 + 1
        torch.testing.assert_close(wrapped(x), module(x), rtol=0, atol=1e-9)
        torch.testing.assert_close(wrapped.state_dict(), module.state_dict(), rtol=0, atol=1e-14)


def test_numbers_in_float64() -> None:
    module = Of(lambda y: (y * 0.1 + 0.3) / 0.7 - torch.where(y > 0, y, 0.2)).double()
    wrapped, x = ORTModule(copy.deepcopy(module)), rows(3).double()
    torch.testing.assert_close(wrapped(x), module(x), rtol=0, atol=1e-14)
