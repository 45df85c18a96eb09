"""What a wrapped module keeps, what it lets go, and which of its results have a gradient."""

import copy
import gc
import weakref
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from onnxtrain import ORTModule
from ortmodule.modules import rows

pytestmark = pytest.mark.usefixtures("strict")


def both(module: nn.Module) -> tuple[ORTModule, nn.Module]:
    return ORTModule(copy.deepcopy(module)), module


def assert_same_gradients(wrapped: nn.Module, module: nn.Module) -> None:
    expected = {name: p.grad for name, p in module.named_parameters()}
    torch.testing.assert_close({n: p.grad for n, p in wrapped.named_parameters()}, expected)


class Kept(torch.autograd.Function):
    """Tells when what a backward pass needs is let go."""

    alive: ClassVar[weakref.WeakSet[object]] = weakref.WeakSet()

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        """The same."""
        Kept.alive.add(ctx)
        return x.clone()

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        """The same."""
        return grads[0]


def test_a_call_without_a_backward_pass_is_let_go() -> None:
    wrapped = ORTModule(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    wrapped(rows(2))
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            wrapped(Kept.apply(rows(2).requires_grad_()))  # it leads to what came before
        assert not Kept.alive
    finally:
        gc.enable()


class TestRegisteredOnTheWrapper:
    def test_parameters_and_buffers(self) -> None:
        wrapped = ORTModule(nn.Linear(4, 4))
        wrapped.register_buffer("count", torch.ones(3))
        wrapped.register_parameter("factor", nn.Parameter(torch.ones(2)))
        assert [*wrapped.module.state_dict()] == ["weight", "bias", "factor", "count"]
        assert wrapped.count.shape == (3,) and wrapped.factor.requires_grad

    def test_hooks_of_the_backward_pass(self) -> None:
        told: list[str] = []
        wrapped = ORTModule(nn.Linear(4, 4))
        wrapped.register_full_backward_hook(lambda *_: told.append("after"))
        wrapped.register_full_backward_pre_hook(lambda *_: told.append("before"))
        wrapped(rows(2).requires_grad_()).sum().backward()
        assert told == ["before", "after"]

    def test_hooks_of_the_state(self) -> None:
        told: list[str] = []
        wrapped = ORTModule(nn.Linear(4, 4))
        wrapped.register_state_dict_pre_hook(lambda *_: told.append("saved"))
        wrapped.register_load_state_dict_post_hook(lambda *_: told.append("loaded"))
        wrapped.load_state_dict(wrapped.state_dict())
        assert told == ["saved", "loaded"]

    def test_hooks_of_a_copy(self) -> None:
        told: list[str] = []
        wrapped = ORTModule(nn.Linear(4, 4))
        wrapped.register_forward_hook(lambda *_: told.append("called"))
        copy.deepcopy(wrapped)(rows(2))
        assert told == ["called"]


class TestChangesInside:
    def test_another_layer(self) -> None:
        wrapped, module = both(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
        wrapped(rows(2))
        for each in (wrapped.module, module):
            each[1] = nn.Sigmoid()
        x = rows(2)
        torch.testing.assert_close(wrapped(x), module(x))

    def test_weights_of_other_sizes(self) -> None:
        class Whole(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                y = super().forward(x)
                return y.sum(-1) / self.weight.shape[0]

        wrapped, module = both(Whole(4, 4))
        wrapped(rows(2))
        for each in (wrapped.module, module):
            assert isinstance(each, nn.Linear)
            each.weight = nn.Parameter(torch.ones(8, 4))
            each.bias = nn.Parameter(torch.ones(8))
        x = rows(2)
        torch.testing.assert_close(wrapped(x), module(x))

    def test_a_bias_that_was_not_there(self) -> None:
        wrapped, module = both(nn.Linear(4, 4, bias=False))
        with torch.no_grad():
            wrapped(rows(2))
            for each in (wrapped.module, module):
                each.bias = nn.Parameter(torch.ones(4))
            x = rows(2)
        torch.testing.assert_close(wrapped(x), module(x))


class Moving(nn.Module):
    """Divides by what it has seen so far, and moves that."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.seen = nn.Buffer(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        """Divide by a copy of what will be changed."""
        h = self.layer(x)
        y = h / self.seen.clone()
        self.seen.lerp_(h.detach().abs().mean(0), 0.1)
        return y


def test_a_buffer_that_is_read_before_it_is_moved() -> None:
    wrapped, module = both(Moving())
    inputs = [rows(n) for n in (2, 3)]
    for each in (wrapped, module):
        losses = [each(x).square().sum() for x in inputs]
        for loss in losses:
            loss.backward()
    assert_same_gradients(wrapped, module)
    torch.testing.assert_close(wrapped.seen, module.seen)


def test_a_checkpoint_around_the_first_call() -> None:
    wrapped, module = both(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    x = rows(2).requires_grad_()
    for each in (wrapped, module):
        checkpoint(each, x, use_reentrant=False).square().sum().backward()
    assert_same_gradients(wrapped, module)


class Comparing(nn.Module):
    """Gives results with and without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """A loss, and results that have no gradient."""
        hidden = self.layer(x)
        with torch.no_grad():
            other = self.other(x)
        places = hidden.argmax(-1)
        above = (hidden > other).float()
        return (hidden - other).square().mean(), hidden.detach(), other, places, above, x * 2


@pytest.mark.parametrize("given", [False, True])
def test_results_without_a_gradient_need_none(given: bool) -> None:
    wrapped, module = both(Comparing())
    x = rows(3).requires_grad_(given)
    found, expected = wrapped(x), module(x)
    torch.testing.assert_close(found, expected)
    assert [t.requires_grad for t in found] == [t.requires_grad for t in expected]
    assert found[1].numpy().shape == (3, 4)
    (found[0] + found[4].sum() + found[1].sum()).backward()
    expected[0].backward()
    assert_same_gradients(wrapped, module)
