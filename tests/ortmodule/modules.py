"""Modules that show what may be in one, what they are called with, and a loss of what they give."""

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

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
    return (torch.cat([x.flatten() for x in real]).square() * weights).mean()
