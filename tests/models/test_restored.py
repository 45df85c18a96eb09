"""Parameters that torch's exporter writes more than once, merges or leaves out are trained."""

import contextlib
import copy
import io
import itertools
import pathlib
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from followed import follow

from onnxtrain import Trainer, artifacts
from onnxtrain.api import CheckpointState
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.torch_export.traced import parameters


class Odd(torch.nn.Module):
    """Layers that are called twice, copies, some without a bias at first, some that do the same."""

    def __init__(self) -> None:
        super().__init__()
        self.image = torch.nn.Conv2d(2, 4, 3, padding=1)
        self.larger = torch.nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2)
        self.again = torch.nn.Linear(36, 36)
        self.small = torch.nn.Linear(36, 6)
        self.copied = torch.nn.Linear(6, 6)
        self.copy = copy.deepcopy(self.copied)
        self.tied = torch.nn.Linear(6, 6)
        self.tied.bias = self.copied.bias
        self.norm = torch.nn.LayerNorm(6)
        self.other_norm = torch.nn.LayerNorm(6)
        self.first = torch.nn.Parameter(torch.zeros(1, 1, 6))
        self.second = torch.nn.Parameter(torch.zeros(1, 1, 6))
        self.head = torch.nn.Linear(48, 3)
        for layer in (self.image, self.larger, self.head):
            assert layer.bias is not None
            torch.nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.larger(torch.tanh(self.image(x))).flatten(2)
        x = torch.tanh(self.again(torch.tanh(self.again(x))))
        x = torch.tanh(self.copied(torch.tanh(self.small(x))))
        x = self.tied(torch.tanh(self.copy(x)))
        x = self.norm(x) + 2 * self.other_norm(x) - self.tied(x) * self.tied(x)
        tokens = [token.expand(len(x), -1, -1) for token in (self.first, self.second)]
        result: torch.Tensor = self.head(torch.cat([*tokens, x], 1).flatten(1))
        return result


@pytest.fixture(scope="module")
def exported() -> tuple[Odd, onnx.ModelProto, torch.Tensor]:
    torch.manual_seed(0)
    module, x = Odd().eval(), torch.rand(5, 2, 3, 3)
    free = ({0: "batch"},)
    program = torch.onnx.export(
        module, (x,), input_names=["x"], dynamo=True, dynamic_shapes=free, verbose=False
    )
    assert program is not None
    return module, program.model_proto, x


def test_the_exporter_does_so(exported: tuple[Odd, onnx.ModelProto, torch.Tensor]) -> None:
    """Else the other tests here show nothing."""
    names = {tensor.name for tensor in exported[1].graph.initializer}
    assert not names & {"image.bias", "larger.bias", "head.bias"}
    assert len(names & {"copy.bias", "copied.bias", "tied.bias"}) == 1
    operators = [node.op_type for node in exported[1].graph.node]
    assert operators.count("LayerNormalization") == operators.count("Expand") == 1
    shapes = [list(tensor.dims) for tensor in exported[1].graph.initializer]
    assert shapes.count([36, 36]) == 2


def test_all_are_trained_as_in_torch(
    exported: tuple[Odd, onnx.ModelProto, torch.Tensor], tmp_path: pathlib.Path
) -> None:
    module, model, x = exported
    module, target = copy.deepcopy(module), torch.rand(5, 3)
    trainer = Trainer(model, loss="mse", optimizer="sgd", lr=0.005, device="cpu")
    follow(trainer, module, x, target, lr=0.005)
    for name in ("image.bias", "larger.bias", "head.bias", "copied.bias", "copy.bias", "second"):
        found = trainer.parameters.get(name, trainer.parameters.get("tied.bias"))
        torch.testing.assert_close(found, module.state_dict()[name])
    trainer.save(tmp_path / "trained.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    (scores,) = session.run(None, {"x": x.numpy()})
    np.testing.assert_allclose(scores, module(x).detach(), rtol=1e-4, atol=1e-5)


def test_artifacts_take_all_names_of_a_module(
    exported: tuple[Odd, onnx.ModelProto, torch.Tensor], tmp_path: pathlib.Path
) -> None:
    module, model, _ = exported
    names = list(parameters(load_model(model).graph).values())
    assert len(names) == len(list(module.parameters()))
    artifacts.generate_artifacts(
        model, requires_grad=names, loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert len(list(state.parameters)) == len(names)


class Encoder(torch.nn.Module):
    """Layers that are copies of one."""

    def __init__(self) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=0.0)
        self.inner = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x)
        return result


class Again(torch.nn.Module):
    """A layer that is called twice, one under two names, and one with the weight of another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (torch.nn.Linear(8, 8) for _ in range(3))
        self.second.weight = self.first.weight
        self.other = self.third
        torch.nn.init.zeros_(self.first.bias)
        torch.nn.init.zeros_(self.second.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.first, self.second, self.third):
            x = torch.tanh(layer(x))
        result: torch.Tensor = self.other(x)
        return result


class Positions(torch.nn.Module):
    """Tokens before every sample, and positions that all of them share."""

    def __init__(self) -> None:
        super().__init__()
        self.token = torch.nn.Parameter(torch.randn(1, 1, 8))
        self.zeros = torch.nn.Parameter(torch.zeros(1, 1, 8))
        self.table = torch.nn.Embedding(6, 8)
        self.last = torch.nn.Linear(48, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = [token.expand(len(x), -1, -1) for token in (self.token, self.zeros)]
        x = torch.cat([*tokens, x], 1)
        x = torch.tanh(x + self.table(torch.arange(6).expand(len(x), -1)))
        result: torch.Tensor = self.last(x.flatten(1)).view(-1, 4, 8)
        return result


class Rows(torch.nn.Module):
    """One type of all tokens, and distances that many pairs of them share."""

    def __init__(self) -> None:
        super().__init__()
        self.types = torch.nn.Embedding(2, 8)
        self.distances = torch.nn.Embedding(4, 2)
        self.mask = torch.nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.types(torch.zeros(x.shape[:2], dtype=torch.long))
        places = torch.arange(4)
        scores = self.distances((places[:, None] - places).abs()).permute(2, 0, 1)
        heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
        scores = (heads @ heads.transpose(2, 3) + scores).softmax(-1)
        x = (scores @ heads).transpose(1, 2).flatten(2)
        hidden = (x[..., :1] > 0.5).float()
        return torch.tanh(x) * (1 - hidden) + hidden * self.mask.expand(len(x), 4, 8)


class Kinds(torch.nn.Module):
    """Tables of zeros: kinds of tokens, one by a buffer, and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (torch.nn.Embedding(n, 8) for n in (2, 3, 4))
        for table in (self.first, self.second, self.third):
            torch.nn.init.zeros_(table.weight)
        self.register_buffer("token_type_ids", torch.zeros(1, 4, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kinds = self.token_type_ids.expand(x.shape[:2])
        x = torch.tanh(x + self.first(kinds)).flip(2)
        x = torch.tanh(x + self.second(torch.zeros(1, 4, dtype=torch.long))).flip(1)
        return x * torch.cos(x + self.third(torch.arange(4)))


class Queries(torch.nn.Module):
    """A token of zeros before every sample, and queries that are read in two forms."""

    def __init__(self) -> None:
        super().__init__()
        self.token = torch.nn.Parameter(torch.zeros(1, 1, 8))
        self.queries = torch.nn.Parameter(torch.randn(4, 8))
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.token.repeat(len(x), 1, 1), x], 1)
        queries = self.queries[None].repeat(len(x), 1, 1)
        return queries + 3 * self.attention(queries, x, x)[0]


class Raised(torch.nn.Module):
    """Distances that many pairs share, to each of which a number is added."""

    def __init__(self) -> None:
        super().__init__()
        self.distances = torch.nn.Embedding(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(4)
        scores = self.distances((places[:, None] - places).abs()).permute(2, 0, 1) + 0.5
        heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
        scores = torch.tanh(heads @ heads.transpose(2, 3) * scores)
        return (scores @ heads).transpose(1, 2).flatten(2)


class Turned(torch.nn.Module):
    """Tensors of three axes that are read in several orders, one of them also as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = torch.nn.Parameter(torch.randn(1, 4, 8))
        self.heads = torch.nn.Parameter(torch.randn(2, 4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = x.unsqueeze(1) @ self.heads.transpose(1, 2)
        x = torch.tanh(scores.sum(1) @ x + (x.unsqueeze(2) * self.heads.transpose(0, 1)).sum(2))
        return (x @ self.queries.transpose(1, 2)).softmax(-1) @ self.queries


class Windows(torch.nn.Module):
    """Distances that all windows share, of which each hides some."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(7, 2))
        self.register_buffer("places", torch.arange(4)[:, None] - torch.arange(4) + 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.table[self.places.view(-1)].view(4, 4, 2).permute(2, 0, 1)[None]
        sides = torch.arange(4) // torch.arange(4, 1, -1)[:, None]
        apart = (sides[:, :, None] != sides[:, None]).float() * -100.0
        heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
        scores = heads @ heads.transpose(2, 3) + (bias + apart[:, None])
        return (scores.softmax(-1) @ heads).transpose(1, 2).flatten(2)


class Wider(torch.nn.Module):
    """A matrix that is also a part of another one, beside a second."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(8, 6))
        self.more = torch.nn.Parameter(torch.randn(6, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x @ self.table)
        return torch.cat([x, x * x], -1) @ torch.cat([self.table.t(), self.more])


class Shares(torch.nn.Module):
    """Shares, and what is left of them, in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.share, self.other, self.third = (torch.nn.Parameter(torch.rand(8)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x * self.share + x.flip(1) * (1 - self.share))
        y = torch.tanh(y * self.other + y.flip(1) * (self.other * 0.3))
        return y * self.third - y.flip(1) * (-self.third)


class Decay(torch.nn.Module):
    """A layer with rates that begin the same in each."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = torch.nn.Parameter(torch.log(torch.arange(1, 9.0)).repeat(8, 1))
        self.first, self.second = (torch.nn.Parameter(torch.linspace(0.1, 0.8, 8)) for _ in "ab")
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.layer(x * self.first + x.flip(1) * (1 - self.first)))
        y = y * self.second + y.flip(1) * (1 - self.second)
        return x - y @ -torch.exp(self.rates) / 64


class Decays(torch.nn.Module):
    """Such layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(Decay() for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(x)
        return result


class Functions(torch.nn.Module):
    """Parameters that can be found again by what was made of them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.7))
        self.rate = torch.nn.Parameter(torch.randn(8))
        self.gate = torch.nn.Parameter(torch.randn(8, 4))
        self.bound = torch.nn.Parameter(torch.zeros(1))
        self.width = torch.nn.Parameter(torch.linspace(-5, 3, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * torch.sigmoid(self.gate).t() + x.flip(2) * torch.tanh(self.bound)
        x = x + torch.nn.functional.softplus(self.width)
        return torch.tanh(x * self.scale.exp()) * -torch.exp(-self.rate)


class Scaled(torch.nn.Module):
    """A parameter that is multiplied by the number that something else is multiplied by, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.shift = torch.nn.Parameter(torch.randn(4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x) * 0.3 + self.shift * 0.3)


@pytest.mark.parametrize(
    ("make", "newer"),
    [
        *itertools.product([Encoder, Again, Positions, Rows, Wider, Shares], [False, True]),
        (Kinds, True),
        (Queries, True),
        (Raised, True),
        (Turned, True),
        (Windows, True),
        (Decays, True),
        (Functions, True),
        (Scaled, True),
    ],
)
def test_a_batch_of_a_fixed_size_is_trained_as_in_torch(
    make: type[torch.nn.Module], newer: bool
) -> None:
    torch.manual_seed(0)
    module, (x, target) = make().eval(), torch.rand(2, 3, 4, 8)
    file = io.BytesIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        options = {"input_names": ["x"], "dynamo": newer}
        torch.onnx.export(module.requires_grad_(), (x,), file, **options)
    trainer = Trainer(file.getvalue(), loss="mse", optimizer="sgd", lr=0.1, device="cpu")
    follow(trainer, module, x, target, lr=0.1)


def test_artifacts_have_rows_once_unless_their_copies_are_named(tmp_path: pathlib.Path) -> None:
    module, file = Rows().eval(), io.BytesIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (torch.rand(2, 4, 8),), file, dynamo=True)
    model = onnx.load_from_string(file.getvalue())
    shapes = []
    for name in ("types.weight", "embedding"):
        artifacts.generate_artifacts(
            model,
            requires_grad=[name],
            loss=artifacts.LossType.MSELoss,
            artifact_directory=tmp_path,
        )
        state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
        shapes += [list(parameter.data.shape) for _, parameter in state.parameters]
    assert shapes == [[1, 1, 8], [2, 4, 8]]
