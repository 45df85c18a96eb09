"""Parameters that begin equal and read the same data train apart, as in torch."""

import copy
import warnings

import pytest
import torch
from followed import exported, follow
from torch import nn

from onnxtrain import Trainer

MERGED = "made one of parameters that were equal"


class Bilinear(nn.Module):
    """Copies of a layer that have their first steps, or all of them, in common."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Bilinear(8, 8, 8)
        self.second, self.third = (copy.deepcopy(self.first) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.second(x, torch.tanh(self.first(x, x))))
        return y + torch.tanh(self.third(x, x)) * 0.5


class Biases(nn.Module):
    """Equal weights beside biases that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = copy.deepcopy(self.first)
        nn.init.ones_(self.second.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.first(x)) * 2 + self.second(x)


class Norms(nn.Module):
    """Normalizations whose results, and what follows them, are read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.LayerNorm(8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = self.first(x), self.second(x)
        return one * 0.2 + other * 0.3 + torch.tanh(one) * 0.4 + torch.tanh(other) * 0.5


class Plain(nn.Module):
    """Normalizations that learn nothing, or of groups, beside those whose ones they are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = (nn.LayerNorm(8) for _ in range(2))
        self.plain = nn.LayerNorm(8, elementwise_affine=False)
        self.groups = nn.GroupNorm(8, 8)
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(self.plain(torch.tanh(self.first(x))))
        result: torch.Tensor = self.last(torch.tanh(self.groups(x.mT).mT))
        return result


class Tied(nn.Module):
    """Two of three normalizations have the same weight on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.LayerNorm(8) for _ in range(3))
        self.second.weight = self.first.weight
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.layer(torch.tanh(self.first(x))))
        result: torch.Tensor = self.third(torch.sin(x))
        return result


class Sides(nn.Module):
    """A row that is looked up twice, beside a table that has another name in a tied layer."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings, self.side_embeddings = (nn.Embedding(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 8, bias=False)
        self.head.weight = self.word_embeddings.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = (torch.zeros(x.shape[:2], dtype=torch.long) for _ in range(2))
        words = self.word_embeddings((x[..., 0] * 7).long())
        words = torch.tanh(words + self.side_embeddings(left)) + self.side_embeddings(right)
        result: torch.Tensor = self.head(words)
        return result


class Branches(nn.Module):
    """Copies of several layers."""

    def __init__(self) -> None:
        super().__init__()
        branch = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.branches = nn.ModuleList(copy.deepcopy(branch) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two, three = (branch(x) for branch in self.branches)
        return one + torch.tanh(two) + torch.sin(three)


class Mixing(nn.Module):
    """Shares of a token and the one before, as RWKV has them, and sums that are written twice."""

    def __init__(self) -> None:
        super().__init__()
        shares = (torch.arange(8) / 8).pow(0.7)[None, None]
        self.time_first = nn.Parameter(torch.ones(8))
        self.time_mix_key, self.time_mix_value = (nn.Parameter(shares.clone()) for _ in range(2))
        self.key, self.value = (nn.Linear(8, 8, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = nn.functional.pad(x, (0, 0, 1, -1))
        key = self.key(x * self.time_mix_key + before * (1 - self.time_mix_key))
        value = self.value(x * self.time_mix_value + before * (1 - self.time_mix_value))
        most = torch.maximum(key + self.time_first, value)
        return x + torch.exp(key + self.time_first - most) * torch.tanh(value)


class Blocks(nn.Module):
    """Such layers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Mixing(), Mixing())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.blocks(x)
        return result


class Scaled(nn.Module):
    """Two branches, each with a scale of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(4, 4) for _ in range(2))
        self.layer_scale_1, self.layer_scale_2 = (nn.Parameter(torch.full((4,), 0.5)) for _ in "12")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.layer_scale_1.unsqueeze(-1) * torch.tanh(self.first(x.mT)).mT
        return x + self.layer_scale_2.unsqueeze(-1) * torch.sin(self.second(x.mT)).mT


class Scales(Blocks):
    """Such blocks, of which all scales are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Scaled(), Scaled(), Scaled())


class Tables(nn.Module):
    """Tables of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Embedding(4, 8) for _ in range(3))
        for table in (self.first, self.second, self.third):
            nn.init.zeros_(table.weight)
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(4)
        y = torch.tanh(self.layer(torch.tanh(x + self.first(places))))
        return y + torch.tanh(x * 2 + self.second(places.flip(0))) * torch.cos(
            x + self.third(places)
        )


class Kinds(Tables):
    """One of them by the same place for all tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kinds = self.first(torch.zeros(x.shape[:2], dtype=torch.long))
        x = torch.tanh(x + kinds + self.second(torch.arange(4)))
        return self.layer(torch.tanh(x * 2 + self.third((x[..., 0] * 3).abs().long())))


FREE = {"dynamic_shapes": ({0: "batch"},)}


def told(model: bytes) -> tuple[Trainer, list[str]]:
    """A trainer, and what was said of merged parameters."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trainer = Trainer(model, loss="mse", optimizer="sgd", lr=0.1, device="cpu")
    return trainer, [str(one.message) for one in found if MERGED in str(one.message)]


@pytest.mark.parametrize("free", [False, True], ids=["fixed", "free"])
@pytest.mark.parametrize(
    "make", [Bilinear, Biases, Norms, Plain, Tied, Sides, Branches, Blocks, Scales, Tables, Kinds]
)
def test_they_are_trained_as_in_torch(make: type[nn.Module], free: bool) -> None:
    torch.manual_seed(0)
    module, (x, target) = make(), torch.rand(2, 3, 4, 8)
    trainer, warned = told(exported(module, x, **(FREE if free else {})))
    assert not warned
    follow(trainer, module, x, target, lr=0.1)


class Three(nn.Module):
    """Three normalizations of which one is read again: which one, the file does not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.LayerNorm(8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.a(x)) * 2 + torch.tanh(self.b(x))
        return y + torch.sin(self.c(x)) * self.b(x)


class Unlike(nn.Module):
    """Normalizations of the same data whose names have nothing in common."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.head = nn.Sequential(nn.LayerNorm(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(self.norm(x).mT) * 2 + torch.sin(self.head(x).mT)).mT


class Parts(nn.Module):
    """Parts of two tables of zeros, or of one."""

    def __init__(self, same: bool = False) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.zeros(1, 6, 8)) for _ in range(2))
        self.layer = nn.Linear(8, 8)
        self.same = same

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.layer(torch.tanh(x + self.a[:, :4])))
        return y * 2 + torch.tanh(x * 2 + (self.a[:, :4] if self.same else self.b[:, 1:5]))


class Twice(nn.Module):
    """The same sum written twice, and a parameter that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.p, self.q = (nn.Parameter(torch.ones(8)) for _ in range(2))
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.p) * 2 + torch.sin(torch.tanh(x * self.p)) + self.layer(x)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (Three, "'b.weight' with 'a.weight'"),
        (Unlike, "'head.0.weight' with 'norm.weight'"),
        (Parts, "'b' with 'a'"),
        (lambda: Parts(same=True), "'b' with 'a'"),
        (Twice, "'q' with 'p'"),
    ],
    ids=["three", "unlike", "parts of two", "parts of one", "twice"],
)
def test_what_the_file_does_not_tell_is_named(make: type[nn.Module], line: str) -> None:
    model = exported(make(), torch.rand(3, 4, 8))
    _, (warned,) = told(model)
    assert line in warned and "optimize=False" in warned


def test_nothing_is_said_if_none_of_them_is_trained() -> None:
    model = exported(Parts(), torch.rand(3, 4, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Trainer(model, loss="mse", trainable="layer.*", device="cpu")


@pytest.mark.parametrize("make", [lambda: Parts(same=True), Twice], ids=["parts", "twice"])
def test_what_is_read_twice_stays_one_beside_what_is_never_read(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module, (x, target) = make(), torch.rand(2, 3, 4, 8)
    trainer, _ = told(exported(module, x))
    used = nn.ParameterList(p for name, p in module.named_parameters() if name not in "bq")
    assert len(trainer.parameters) == len(used)
    steps = torch.optim.SGD(used, lr=0.1)
    for _ in range(4):
        steps.zero_grad()
        loss = nn.functional.mse_loss(module(x), target)
        loss.backward()
        steps.step()
        torch.testing.assert_close(trainer.step({"x": x, "target": target}), loss.detach())
