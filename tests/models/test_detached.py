"""What a torch module detaches gets no gradient from there."""

from __future__ import annotations

import warnings

import pytest
import torch
from followed import exported
from torch import nn

from onnxtrain import Trainer, grad


class Detached(nn.Module):
    """Two layers of which something is detached; ``forward`` says what."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(4, 4) for _ in range(2))


class Straight(Detached):
    """Steps whose gradient is that of what was rounded."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        soft = torch.tanh(self.first(x))
        hard = (soft > 0).float() - soft.detach() + soft
        return self.second(hard)


class Itself(Detached):
    """A value beside itself, in both orders."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, z = self.first(x), self.second(x)
        return y * y.detach() + z.detach() / (2 + z * z)


class Layers(Detached):
    """A target of another layer, which has another shape first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        target = torch.sigmoid(self.second(x)).detach().unsqueeze(1)
        return (self.first(x).unsqueeze(1) @ (target.mT * target)).squeeze(1)


class Joined(Detached):
    """Values that are joined or chosen."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, z = self.first(x), torch.sin(self.second(x))
        rows = torch.cat([y.detach(), torch.cos(y), z.detach()], 1)
        return torch.where(x > 0, y, z.detach()) + rows.unflatten(1, (3, 4)).prod(1)


class Several(Detached):
    """Calls of which several nodes are made."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, z = torch.sin(self.first(x)), torch.sigmoid(self.second(x))
        y = torch.sub(y, z.detach(), alpha=2) + torch.lerp(y.detach(), z, 0.25)
        y = torch.atan2(y, z.detach() + 1) + torch.addcmul(z.detach(), y, y, value=0.5)
        return nn.functional.layer_norm(y, (4,), z[0].detach()) + torch.atan2(y.detach(), z)


class Weights(Detached):
    """A weight that one of its readers does not train."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.linear(self.second(x), self.first.weight.detach(), self.first.bias)
        return torch.tanh(y) + self.first(x) * self.second.bias.detach()


class Constants(Detached):
    """Values that the exporter computes: of a buffer, and of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(6, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = self.table.index_select(0, torch.arange(1)).detach()
        rates = torch.exp(self.second.bias * 2).detach()
        return torch.addcmul(places, self.second(self.first(x) + places), rates)


class Table(Constants):
    """The first of these alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) + self.table.index_select(0, torch.arange(1)).detach())


@pytest.mark.parametrize("options", [{}, {"optimize": False}, {"dynamic_shapes": ({0: "n"},)}])
@pytest.mark.parametrize("make", [Straight, Itself, Layers, Joined, Several, Weights, Constants])
def test_gradients_are_those_of_torch(make: type[nn.Module], options: dict[str, object]) -> None:
    torch.manual_seed(0)
    module, (x, target) = make(), torch.randn(2, 3, 4)
    model = exported(module, x, **options)
    nn.functional.mse_loss(module(x), target).backward()
    expected = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    for fuse in (True, False):
        trainer = Trainer(model, loss="mse", device="cpu", fuse=fuse)
        found = trainer.gradients({"x": x, "target": target})
        assert found.keys() == expected.keys()
        for name, wanted in expected.items():
            torch.testing.assert_close(found[name], wanted)


class Unclear(Detached):
    """One call that is given a value twice, once detached."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, z = self.first(x), torch.sin(self.second(x.detach().flip(0)))
        return torch.addcmul(z.detach(), y, z)


class Merged(Detached):
    """Differences of the same, of which one is detached and another has a part that is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, z = self.first(x), self.second(x)
        return y + (z - y).detach() + torch.sin(z - y.detach())


@pytest.mark.parametrize(("make", "call"), [(Unclear, "addcmul"), (Merged, "sub_1")])
def test_what_a_file_does_not_tell_is_named(make: type[nn.Module], call: str) -> None:
    x = torch.randn(3, 4)
    with pytest.warns(UserWarning, match=f"'{call}'") as found:
        Trainer(exported(make(), x), loss="mse", device="cpu")
    assert [one.filename for one in found] == [__file__] and "flip" not in str(found[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Trainer(exported(make(), x, optimize=False), loss="mse", device="cpu")


class Again(Detached):
    """Something detached, parts that are all, and the same of what is not learned twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)[:, 1:][:, :4][:3] * x.flip(0)[:, 1:]
        y = torch.nn.functional.pad(y, (0, 1))
        return y.sin() * x.flip(0) + self.second(x).detach()


def test_nothing_is_said_of_what_is_not_learned() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Trainer(exported(Again(), torch.randn(3, 4)), loss="mse", device="cpu", trainable="first.*")


def test_a_constant_that_was_computed_is_known_by_its_name() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Trainer(exported(Table(), torch.randn(3, 4)), loss="mse", device="cpu")


def test_the_gradient_of_an_input_stops_there_too() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (torch.sin(x) * torch.sin(x.flip(0)).detach()).sum()

    x = torch.randn(5, requires_grad=True)
    model = exported(Twice(), x.detach())
    Twice()(x).backward()
    found = grad(model, wrt=["x"])({"x": x.detach().numpy()})["x"]
    torch.testing.assert_close(torch.from_numpy(found), x.grad)
