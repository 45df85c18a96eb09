"""Modules that onnxtrain runs against the same modules run by torch."""

import copy

import pytest
import torch
from torch import Tensor, nn

from onnxtrain import ORTModule
from onnxtrain.errors import OptionError
from ortmodule.modules import MODULES, Convolutional, images, rows, total


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


@pytest.mark.usefixtures("strict")
def test_sizes_that_vary() -> None:
    """Samples and words may from the beginning, what else does from its second size on."""
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1))
    wrapped = ORTModule(copy.deepcopy(plain))
    for count, size in (
        (2, (8, 9)),
        (5, (8, 9)),
        (5, (8, 7)),
        (3, (8, 11)),
        (3, (6, 6)),
        (4, (5, 9)),
    ):
        x = torch.randn(count, 3, *size)
        torch.testing.assert_close(wrapped(x), plain(x))
    shapes = [session.exported.shapes[0][2:] for session in wrapped._all_sessions()]
    kinds = [[isinstance(size, int) for size in shape] for shape in shapes]
    assert kinds == [[True, True], [True, False], [False, False]]
