"""ReLU6 and Hardtanh have no gradient at their bounds, clamp has all of it: as in torch."""

from __future__ import annotations

import pytest
import torch
from followed import exported
from torch import nn

from onnxtrain import grad


class Clamp(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(0, 6)


class Least(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(min=0)


class Most(nn.Module):
    """Also of a tensor, which gets the gradient of what is above it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(max=6) + torch.clamp(x, max=x.flip(0)) * 3


class Larger(nn.Module):
    """No clamp: both of two that tie get a half."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.maximum(x, x.flip(0) * 2 - 1)


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("make", [nn.ReLU6, nn.Hardtanh, Clamp, Least, Most, Larger])
def test_gradients_at_bounds_are_those_of_torch(make: type[nn.Module], optimize: bool) -> None:
    module = nn.Sequential(make())
    x = torch.tensor([-2.0, -1.0, 0.0, 0.5, 1.0, 6.0, 7.0], requires_grad=True)
    model = exported(module, x.detach(), output_names=["y"], optimize=optimize)
    module(x).sum().backward()
    fed = {"x": x.detach().numpy(), "y_grad": torch.ones(7).numpy()}
    found = grad(model, wrt=["x"])(fed)["x"]
    assert x.grad is not None and found.tolist() == x.grad.tolist()
