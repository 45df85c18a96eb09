"""Modules that onnxtrain runs against the same modules run by torch."""

import copy
import pickle
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from onnxtrain import ORTModule
from onnxtrain.errors import NoGradientError, OptionError

Both = namedtuple("Both", ["scores", "hidden"])


class Convolutional(nn.Module):
    """Normalization that moves its statistics, results in a dict, arguments of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.plain = nn.BatchNorm2d(6, affine=False, track_running_stats=False)
        self.linear = nn.Linear(6, 4)
        self.register_buffer("factor", torch.full((4,), 0.5))

    def forward(self, x: Tensor, scale: float = 1.0, *, mask: Tensor | None = None) -> Any:
        hidden = (
            self.plain(torch.relu(self.norm(self.conv(x))) + self.conv(x)).square().mean((2, 3))
        )
        scores = self.linear(hidden) * self.factor * scale
        if mask is not None:
            scores = scores * mask
        return {"scores": scores, "rest": [hidden, None, 3, hidden.argmax(1)]}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 10, batch_first=True)

    def forward(self, ids: Tensor) -> Both:
        hidden, (last, _) = self.lstm(self.table(ids))
        return Both(last[0], hidden)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.scores = nn.Linear(8, 20, bias=False)
        self.scores.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.scores(self.layers(self.table(ids)))


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.first(x)
        with torch.no_grad():
            frozen = self.second(x) * 2
        return self.second(hidden.detach()) + hidden * frozen, x


class Triple(torch.autograd.Function):
    """A function whose backward pass is not the derivative of its forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float, y: Tensor, name: str) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, y)
        ctx.factor = factor
        return x * factor, (y + x).sum()

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved_tensors
        return first * 3 * x + second, None, second * y * ctx.factor, None


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class OwnBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        scaled, total = Triple.apply(self.first(x), 2.5, self.second(x), "name")
        return Straight.apply(scaled * 3) * total


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.linear, self.reentrant = nn.Linear(4, 4), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda t: self.linear(t).tanh(), x, use_reentrant=self.reentrant)


class Dropping(nn.Module):
    """Layers that may be left out by chance, as in the transformers library, and never are."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.training and torch.rand([]) < 0.0:
                continue
            x = layer(x).tanh()
        return x


class Rotating(nn.Module):
    """Complex numbers that are computed without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            angle = torch.arange(2, device=x.device, dtype=x.dtype) * 0.25
            turn = torch.complex(angle.cos(), angle.sin())
        pairs = torch.view_as_complex(self.linear(x).reshape(-1, 2, 2))
        return torch.view_as_real(pairs * turn).flatten(1)


def images(n: int) -> Tensor:
    return torch.randn(n, 3, 6, 7)


def words(n: int) -> Tensor:
    return torch.randint(0, 20, (n, 5))


def rows(n: int) -> Tensor:
    return torch.randn(n, 4)


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "convolutional": (Convolutional, images),
    "recurrent": (Recurrent, words),
    "tied": (Tied, words),
    "detached": (Detached, rows),
    "own backward": (OwnBackward, rows),
    "dropping": (Dropping, rows),
    "rotating": (Rotating, rows),
    "checkpoint": (lambda: Checkpointed(False), rows),
    "reentrant checkpoint": (lambda: Checkpointed(True), rows),
}


def total(results: Any) -> Tensor:
    """A loss of all real results."""
    leaves, _ = torch.utils._pytree.tree_flatten(results)
    real = [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
    weights = torch.linspace(0.5, 1.5, sum(x.numel() for x in real), device=real[0].device)
    return (torch.cat([x.flatten() for x in real]).square() * weights).sum()


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to torch."""
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("name", MODULES)
def test_steps_are_those_of_torch(name: str, device: str) -> None:
    make, draw = MODULES[name]
    plain = make().to(device, torch.float64)
    wrapped = ORTModule(copy.deepcopy(plain))
    optimizers = [torch.optim.SGD(m.parameters(), 0.01) for m in (plain, wrapped)]
    for step in range(3):
        x = draw(3 + step).to(device)
        x = x.double() if x.is_floating_point() else x
        found = []
        for module, optimizer in zip((plain, wrapped), optimizers, strict=True):
            given = x.clone().requires_grad_(x.is_floating_point())
            optimizer.zero_grad()
            results = module(given)
            total(results).backward()
            optimizer.step()
            found.append((results, given.grad))
        torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)
        grads = [[p.grad for p in m.parameters()] for m in (wrapped, plain)]
        torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(wrapped.state_dict(), plain.state_dict(), rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("strict")
def test_arguments_in_any_form() -> None:
    plain = Convolutional()
    wrapped = ORTModule(copy.deepcopy(plain))
    x, mask = images(2), torch.rand(2, 4)
    for args, kwargs in (((x,), {}), ((x, 2.0), {}), ((x,), {"mask": mask, "scale": 0.5})):
        expected, found = plain(*args, **kwargs), wrapped(*args, **kwargs)
        torch.testing.assert_close(found, expected)
    assert len([*wrapped._all_sessions()]) == 3


@pytest.mark.usefixtures("strict")
def test_modes_of_the_module() -> None:
    plain = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.9))
    wrapped = ORTModule(copy.deepcopy(plain))
    assert wrapped.training
    wrapped.eval()
    plain.eval()
    assert not wrapped.training and not wrapped.module.training
    x = rows(5)
    torch.testing.assert_close(wrapped(x), plain(x))
    with torch.no_grad():
        assert not wrapped(x).requires_grad
        torch.testing.assert_close(wrapped(x), plain(x))
    assert wrapped(x).requires_grad  # as torch has it
    plain[1].train()  # one part trains, another does not
    wrapped.module[1].train()
    torch.testing.assert_close(wrapped(x), plain(x))
    torch.testing.assert_close(wrapped.state_dict(), plain.state_dict())


@pytest.mark.usefixtures("strict")
def test_random_numbers_follow_from_torchs() -> None:
    wrapped = ORTModule(nn.Dropout(0.5))
    x = torch.ones(1000, requires_grad=True)
    torch.manual_seed(3)
    first, second = wrapped(x), wrapped(x)
    assert not torch.equal(first, second)
    assert 0.4 < (first == 0).float().mean() < 0.6
    torch.manual_seed(3)
    assert torch.equal(wrapped(x), first)
    (grad,) = torch.autograd.grad(second.sum(), x)
    assert torch.equal(grad, second)


@pytest.mark.usefixtures("strict")
def test_parameters_that_a_loss_does_not_reach_have_no_gradient() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.unused = nn.Parameter(torch.ones(2))
            self.first.bias.requires_grad_(False)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.first(x), self.second(x)

    wrapped = ORTModule(Two())
    wrapped(rows(3))[0].sum().backward()
    have = [name for name, p in wrapped.named_parameters() if p.grad is not None]
    assert have == ["first.weight"]


@pytest.mark.usefixtures("strict")
def test_several_calls_before_one_backward() -> None:
    plain = nn.Linear(4, 4)
    wrapped = ORTModule(copy.deepcopy(plain))
    x = rows(3)
    for module in (plain, wrapped):
        (module(x) * module(2 * x)).sum().backward()
    torch.testing.assert_close(wrapped.weight.grad, plain.weight.grad)


@pytest.mark.usefixtures("strict")
def test_a_second_backward_is_refused() -> None:
    y = ORTModule(nn.Linear(4, 4))(rows(3))
    y.sum().backward(retain_graph=True)
    with pytest.raises(OptionError, match="call the module once more"):
        y.sum().backward()


@pytest.mark.usefixtures("strict")
def test_what_is_overwritten_before_the_backward_is_noticed() -> None:
    x = rows(3)
    y = ORTModule(nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()))(x)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = ORTModule(nn.Linear(4, 4))(x)  # whose gradient does not need its result
    y.relu_().sum().backward()


@pytest.mark.usefixtures("strict")
def test_autocast_is_part_of_what_is_exported() -> None:
    plain = nn.Linear(4, 4)
    wrapped = ORTModule(copy.deepcopy(plain))
    x = rows(3)
    assert wrapped(x).dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = plain(x), wrapped(x)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, expected)
    found.float().sum().backward()
    assert wrapped.weight.grad.dtype is torch.float32


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y * 2 if y.sum() > 0 else y


def test_torch_runs_what_cannot_be_exported(capfd: pytest.CaptureFixture[str]) -> None:
    plain = Branching()
    wrapped = ORTModule(copy.deepcopy(plain))
    with pytest.warns(UserWarning, match="torch runs Branching itself: .*data-dependent") as told:
        for _ in range(2):
            x = rows(3)
            torch.testing.assert_close(wrapped(x), plain(x))
    assert [warning.filename for warning in told] == [__file__]
    assert "def forward" not in capfd.readouterr().err  # the exporter would print its graph


@pytest.mark.usefixtures("strict")
def test_unless_that_is_forbidden() -> None:
    with pytest.raises(Exception, match="data-dependent"):
        ORTModule(Branching())(rows(3))


@pytest.mark.usefixtures("strict")
def test_a_function_that_cannot_be_a_node_is_named() -> None:
    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, int]:
            return x * 2, 3

        @staticmethod
        def backward(ctx: Any, grad: Tensor, _: Any) -> Tensor:
            return grad

    class Calls(Branching):
        def forward(self, x: Tensor) -> Tensor:
            return Odd.apply(self.linear(x))[0]

    with pytest.raises(NoGradientError, match=r"Odd takes no tensor, or gives something else"):
        ORTModule(Calls())(rows(3))


def test_too_many_kinds_of_arguments_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxtrain.ortmodule.module.MOST", 1)
    wrapped, x = ORTModule(Convolutional()), images(2)
    with pytest.warns(UserWarning, match="arguments of more than 1 kinds") as told:
        for scale in (1.0, 2.0, 3.0):
            wrapped(x, scale)
    assert len(told) == 1
    assert len([*wrapped._all_sessions()]) == 1


class TestStandsForTheModule:
    def test_names(self) -> None:
        plain = Tied()
        wrapped = ORTModule(plain)
        assert [*wrapped.state_dict()] == [*plain.state_dict()]
        assert [n for n, _ in wrapped.named_parameters()] == [
            n for n, _ in plain.named_parameters()
        ]
        assert [*wrapped.children()] == [*plain.children()]
        assert wrapped.module is plain and wrapped.table is plain.table
        assert repr(wrapped) == f"ORTModule({plain!r})"
        with pytest.raises(AttributeError, match="'Tied' object has no attribute 'nothing'"):
            wrapped.nothing  # noqa: B018

    def test_attributes_that_are_set(self) -> None:
        class Scaled(nn.Linear):
            factor = 2.0

            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x) * self.factor

        plain = Scaled(4, 4)
        wrapped, x = ORTModule(plain), rows(2)
        first = wrapped(x)
        wrapped.factor = 4.0
        assert plain.factor == 4.0
        torch.testing.assert_close(wrapped(x), first * 2)

    def test_types(self) -> None:
        wrapped = ORTModule(nn.Linear(4, 4))
        wrapped(rows(2))
        assert wrapped.double()(rows(2).double()).dtype is torch.float64

    def test_weights_that_are_loaded(self) -> None:
        first, second, x = ORTModule(nn.Linear(4, 4)), nn.Linear(4, 4), rows(2)
        first(x)
        first.load_state_dict(second.state_dict())
        torch.testing.assert_close(first(x), second(x))

    @pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
    def test_copies(self, again: Callable[[ORTModule], ORTModule]) -> None:
        wrapped, x = ORTModule(nn.Linear(4, 4)), rows(2)
        expected = wrapped(x)
        other = again(wrapped)
        assert other.weight is not wrapped.weight
        torch.testing.assert_close(other(x), expected)

    def test_what_cannot_be_wrapped(self) -> None:
        with pytest.raises(OptionError, match=r"wraps a torch\.nn\.Module, not function"):
            ORTModule(rows)
        with pytest.raises(OptionError, match="DistributedDataParallel"):
            ORTModule(nn.DataParallel(nn.Linear(4, 4)))
        with pytest.raises(OptionError, match="before it is wrapped"):
            ORTModule(nn.Linear(4, 4)).add_module("more", nn.ReLU())
