"""What a module's attributes say, and what a call does besides giving results."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from onnxtrain import ORTModule
from onnxtrain.errors import GraphError
from onnxtrain.ortmodule.watched import (
    are_unchanged,
    attributes_of,
    reads_of,
    refuse_changes,
    without_other_draws,
)
from ortmodule.modules import rows


class Calling(nn.Module):
    """A linear layer, and whatever else a call does."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.table = nn.Embedding(4, 4, max_norm=0.5)
        self.norm = nn.InstanceNorm1d(4, track_running_stats=True)
        self.call, self.count, self.kept = call, 1, [1, 2]

    def forward(self, x: Tensor) -> Any:
        return self.call(self, x)


def counted(self: Calling, x: Tensor) -> Tensor:
    self.count += 1
    return self.linear(x) * self.count


def stored(self: Calling, x: Tensor) -> Tensor:
    self.last = self.linear(x)
    return self.last * 2


def appended(self: Calling, x: Tensor) -> Tensor:
    self.kept.append(self.linear(x))
    return self.kept[-1] * 2


def overwritten(self: Calling, x: Tensor) -> Tensor:
    x.mul_(2)
    return self.linear(x)


def renormalized(self: Calling, x: Tensor) -> Tensor:
    return self.linear(x) + self.table(torch.tensor([1, 2, 3]))


def moved(self: Calling, x: Tensor) -> Tensor:
    return self.norm(self.linear(x)[None].expand(2, -1, -1).mT)


def drawn(self: Calling, x: Tensor) -> Tensor:
    torch.rand(3)
    return self.linear(x)


def drawn_by_numpy(self: Calling, x: Tensor) -> Tensor:
    return self.linear(x) * float(np.random.rand())


def sparse(self: Calling, x: Tensor) -> Tensor:
    ids = torch.tensor([1, 2, 3])
    return self.linear(x) + nn.functional.embedding(ids, self.table.weight, sparse=True)


REFUSED = {
    counted: "changes the attribute 'count'",
    stored: "changes the attribute 'last'",
    appended: "changes the attribute 'kept'",
    overwritten: "changes an argument in place",
    renormalized: r"changes the parameter 'table\.weight' in place",
    moved: r"changes the buffer 'norm\.running_mean'",
    drawn: "draws random numbers, which the exported graph does not",
    drawn_by_numpy: "draws random numbers of Python or NumPy",
    sparse: "gradients of a graph are not sparse",
}


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("call", REFUSED, ids=lambda call: call.__name__)
def test_what_a_graph_does_not_do_is_refused(call: Callable[..., Any]) -> None:
    module, x = Calling(call), rows(3)
    before, given = {k: v.clone() for k, v in module.state_dict().items()}, x.clone()
    with pytest.raises(GraphError, match=REFUSED[call]):
        ORTModule(module)(x)
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(x, given) and module.count == 1


def test_torch_does_it_then() -> None:
    module, x = Calling(counted), rows(3)
    wrapped = ORTModule(module)
    with pytest.warns(UserWarning, match="'count'"):
        wrapped(x)
    torch.testing.assert_close(wrapped(x), module.linear(x) * 3)
    assert module.count == 3


@pytest.mark.usefixtures("strict")
def test_results_that_are_sizes_are_those_of_each_call() -> None:
    wrapped = ORTModule(Calling(lambda self, x: (self.linear(x), x.shape[0], x.shape[0] * 0.5)))
    assert [wrapped(rows(count))[1:] for count in (3, 5, 3)] == [(3, 1.5), (5, 2.5), (3, 1.5)]
    assert len([*wrapped._all_sessions()]) == 2


@pytest.mark.usefixtures("strict")
def test_results_that_hide_tensors_are_refused() -> None:
    class Box:
        def __init__(self, y: Tensor) -> None:
            self.y = y

    with pytest.raises(GraphError, match="a call gives Box, in which a graph cannot put tensors"):
        ORTModule(Calling(lambda self, x: Box(self.linear(x))))(rows(3))


@pytest.mark.usefixtures("strict")
def test_attributes_are_those_of_the_call() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0), nn.LeakyReLU(0.5))
    wrapped, x = ORTModule(module), rows(5)
    first = wrapped(x)
    module[2].negative_slope = 0.25
    torch.testing.assert_close(wrapped(x), torch.where(first < 0, first / 2, first))
    module[1].p = 0.9
    assert (wrapped(x) == 0).any()
    module[1].p, module[2].negative_slope, module.unread = 0.0, 0.5, "new"
    wrapped.also_unread = 3
    torch.testing.assert_close(wrapped(x), first)
    assert len([*wrapped._all_sessions()]) == 3, "the first one serves again"


def test_reads_are_noted_and_nothing_is_left_behind() -> None:
    module = nn.Sequential(nn.Dropout(0.25), nn.ReLU())
    before = nn.Dropout.__getattribute__
    with reads_of(module) as settings:
        module(torch.ones(2))
        module[0].p = 0.75
        module(torch.ones(2))
    assert settings["0"]["p"] == 0.25 and settings["0"]["training"] is True
    assert settings["1"]["inplace"] is False and "p" not in settings["1"]
    assert nn.Dropout.__getattribute__ is before
    assert not are_unchanged(dict(module.named_modules()), settings)
    module[0].p = 0.25
    assert are_unchanged(dict(module.named_modules()), settings)
    module[0].p = 0  # another type
    assert not are_unchanged(dict(module.named_modules()), settings)


class Holding(nn.Module):
    """Reads tensors that are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.inner.scale = torch.ones(4, requires_grad=True)
        self.shift: Tensor | None = torch.ones(4)
        self.listed = [torch.ones(4)]

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x) * self.inner.scale + torch.tensor([1.0, 2.0, 3.0, 4.0]) + self.listed[0]
        return y if self.shift is None else y + self.shift


@pytest.mark.usefixtures("strict")
def test_tensors_that_are_attributes_are_those_of_the_call() -> None:
    module, x = Holding(), rows(3)
    wrapped = ORTModule(module)

    def check(exports: int) -> None:
        expected = module(x)
        (grad,) = torch.autograd.grad(expected.square().sum(), module.inner.scale)
        module.inner.scale.grad = None
        found = wrapped(x)
        torch.testing.assert_close(found, expected)
        found.square().sum().backward()
        torch.testing.assert_close(module.inner.scale.grad, grad)
        assert len([*wrapped._all_sessions()]) == exports

    check(1)
    module.shift.mul_(3)
    with torch.no_grad():
        module.inner.scale.mul_(2)
    check(1)
    module.shift = torch.full((4,), 7.0)
    module.inner.scale = torch.full((4,), 0.5, requires_grad=True)
    check(1)
    module.shift = torch.full((1,), 7.0)
    check(2)
    module.shift = None
    check(3)
    module.shift = torch.ones(4)
    check(3)


@pytest.mark.usefixtures("strict")
def test_tensors_with_gradients_elsewhere_are_refused() -> None:
    module = Holding()
    module.listed[0].requires_grad_()
    with pytest.raises(GraphError, match="gradient that is no attribute of a module\n  register"):
        ORTModule(module)(rows(3))


def test_what_is_computed_once_and_kept_is_no_change() -> None:
    module = Calling(counted)
    before = attributes_of(module)
    module.name, module.kept = "new", [1, 2]
    refuse_changes(before, attributes_of(module))
    module.kept[0] = 5
    with pytest.raises(GraphError, match="'kept'"):
        refuse_changes(before, attributes_of(module))


def test_other_random_numbers_are_put_back() -> None:
    for draw in (random.random, np.random.rand):
        random.seed(0)
        np.random.seed(0)
        expected = draw()
        random.seed(0)
        np.random.seed(0)
        with pytest.raises(GraphError, match="Python or NumPy"), without_other_draws():
            draw()
        assert draw() == expected
    with without_other_draws():
        torch.rand(1)
