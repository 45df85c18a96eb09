"""What trainers and processes do with a wrapped module."""

import copy
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from onnxtrain import ORTModule
from onnxtrain.distributed.groups import Groups
from onnxtrain.testing.processes import run_world
from ortmodule.modules import Convolutional, images, rows, total

pytestmark = pytest.mark.usefixtures("strict")


def one_of_several(groups: Groups, seed: int) -> dict[str, Tensor]:
    """Weights after two steps of a process that sees its own images."""
    torch.manual_seed(seed)
    module = ORTModule(nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.LazyLinear(2)))
    module(torch.zeros(1, 3, 6, 7))
    parallel = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(parallel.parameters(), 0.1)
    draw = torch.Generator().manual_seed(groups.rank)
    for _ in range(2):
        optimizer.zero_grad()
        parallel(torch.randn(4, 3, 6, 7, generator=draw)).square().mean().backward()
        optimizer.step()
    assert [*module._all_sessions()], "torch has not run it"
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def test_several_processes() -> None:
    first, second = run_world(2, one_of_several, 3, timeout=120, deadline=240)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.manual_seed(3)
    alone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.LazyLinear(2))
    alone(torch.zeros(1, 3, 6, 7))
    optimizer = torch.optim.SGD(alone.parameters(), 0.1)
    draws = [torch.Generator().manual_seed(rank) for rank in range(2)]
    for _ in range(2):
        optimizer.zero_grad()
        alone(
            torch.cat([torch.randn(4, 3, 6, 7, generator=draw) for draw in draws])
        ).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(first, dict(alone.state_dict()), rtol=1e-4, atol=1e-6)


def test_the_signature_is_that_of_the_module() -> None:
    module = Convolutional()
    assert inspect.signature(ORTModule(module).forward) == inspect.signature(module.forward)


def test_a_forward_that_a_trainer_has_wrapped() -> None:
    """As accelerate does for mixed precision."""
    wrapped = ORTModule(nn.Linear(4, 4))
    original, x = wrapped.forward, rows(3)

    def in_16_bits(*args: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return original(*args).float()

    wrapped.forward = in_16_bits
    with torch.autocast("cpu", torch.bfloat16):
        expected = wrapped.module(x).float()
    torch.testing.assert_close(wrapped(x), expected)
    assert "forward" not in vars(wrapped.module)
    wrapped(x).sum().backward()
    assert wrapped.weight.grad.dtype is torch.float32


def test_hooks_of_the_wrapper_and_of_parameters() -> None:
    wrapped, seen = ORTModule(nn.Linear(4, 4)), []
    wrapped.register_forward_hook(lambda module, args, result: seen.append(module) or result * 2)
    wrapped.weight.register_post_accumulate_grad_hook(seen.append)
    x = rows(3)
    y = wrapped(x)
    torch.testing.assert_close(y, wrapped.module(x) * 2)
    y.sum().backward()
    assert seen[0] is wrapped and seen[1] is wrapped.weight


def test_accumulation_and_clipping() -> None:
    plain = Convolutional()
    wrapped = ORTModule(copy.deepcopy(plain))
    for module in (plain, wrapped):
        torch.manual_seed(0)
        for _ in range(2):
            total(module(images(3))).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.01)
    grads = [[p.grad for p in module.parameters()] for module in (wrapped, plain)]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-6)
