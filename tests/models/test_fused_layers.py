"""Layers as torch exports them: what they become, and three steps with it, without it, in torch."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import onnx
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from onnxtrain import Trainer
from onnxtrain.gradients import build_gradient_graph
from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.fusion import Report, fuse

WIDTH, HIDDEN, HEAD, TOKENS, STEPS, LR = 8, 16, 8, 5, 3, 0.1
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def _parts(h: Tensor) -> tuple[Tensor, Tensor]:
    first, second = h.chunk(2, dim=-1)
    return first, second


GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": lambda h: _parts(h)[1] * functional.silu(_parts(h)[0]),
    "sliced": lambda h: functional.silu(h[..., :HIDDEN]) * h[..., HIDDEN:],
    "glu": lambda h: functional.glu(h, -1),
    "channels": lambda h: functional.glu(h.transpose(1, 2), 1).transpose(1, 2),
    "geglu": lambda h: _parts(h)[0] * functional.gelu(_parts(h)[1]),
    "tanh": lambda h: _parts(h)[0] * functional.gelu(_parts(h)[1], approximate="tanh"),
    "reglu": lambda h: functional.relu(_parts(h)[0]) * _parts(h)[1],
}


class Gate(nn.Module):
    """One projection for gate and factor, then their product, projected back."""

    def __init__(self, kind: str, bias: bool = True) -> None:
        super().__init__()
        self.kind = kind
        self.both = nn.Linear(WIDTH, 2 * HIDDEN, bias=bias)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(GATES[self.kind](self.both(x)))
        return result


class Apart(nn.Module):
    """A GLU with a projection for each."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(self.up(x) * torch.sigmoid(self.gate(x)))
        return result


class Rotated(nn.Module):
    """Heads of one projection, their features turned by their positions."""

    cos: Tensor
    sin: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.project = nn.Linear(WIDTH, 2 * HEAD)
        angles = torch.arange(TOKENS)[:, None] / 10.0 ** torch.arange(HEAD // 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: Tensor) -> Tensor:
        heads = self.project(x).view(len(x), TOKENS, 2, HEAD).transpose(1, 2)
        return ROTATIONS[self.kind](heads, self.cos, self.sin)


def _every_two(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = (t.repeat_interleave(2, -1) for t in (cos, sin))
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * cos + turned * sin


def _complex(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    numbers = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(numbers * torch.complex(cos, sin)).flatten(3)


def _selected(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    z = x.reshape(*x.shape[:-1], -1, 2)
    a, b = z[..., 0] * cos - z[..., 1] * sin, z[..., 1] * cos + z[..., 0] * sin
    return torch.stack([a, b], -1).flatten(3)


def _stepped(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def _unbound(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def _halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _partly(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As GPT-J has it: only the first features are turned."""
    some = HEAD // 2
    return torch.cat([_every_two(x[..., :some], *(t[:, : some // 2] for t in (cos, sin))),
                      x[..., some:]], -1)  # fmt: skip


ROTATIONS = {
    "every two": _every_two,
    "complex": _complex,
    "selected": _selected,
    "stepped": _stepped,
    "unbound": _unbound,
    "halves": _halves,
    "partly": _partly,
}


def exported(module: nn.Module, x: Tensor, optimize: bool = True) -> onnx.ModelProto:
    program = torch.onnx.export(
        copy.deepcopy(module).eval(),
        (x,),
        dynamo=True,
        optimize=optimize,
        verbose=False,
        input_names=["x"],
        output_names=["y"],
        dynamic_shapes=({0: torch.export.Dim("batch", min=2)},),
    )
    assert program is not None
    return program.model_proto


def fused(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Report]:
    working = prepare(ir.from_proto(model))
    weights = [t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
    weights = [name for name in weights if name not in ("cos", "sin")]
    report = fuse(working, trained=weights)
    return ir.to_proto(working), report


def in_torch(module: nn.Module, x: Tensor, target: Tensor) -> list[float]:
    module = copy.deepcopy(module).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    losses = []
    for _ in range(STEPS):
        loss = functional.mse_loss(module(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def trained(
    model: onnx.ModelProto, x: Tensor, target: Tensor, device: str, joined: bool
) -> tuple[list[float], dict[str, Tensor], set[str]]:
    """Losses, weights after the last step, and the operators that ran."""
    options = {"loss": "mse", "optimizer": "sgd", "lr": LR, "seed": 0}
    trainer = Trainer(model, **options, device=device, fuse=joined)
    batch = {"x": x.numpy(), "target": target.numpy()}
    losses = [float(trainer.step(batch)) for _ in range(STEPS)]
    weights = {p.name: p.tensor.cpu() for p in trainer.state.parameters.in_order()}
    plan = trainer.module.runner(training=True).plan
    return losses, weights, {step.kernel.op for step in plan.block.steps}


def check_training(
    module: nn.Module, model: onnx.ModelProto, x: Tensor, device: str, operator: str
) -> None:
    """Losses and weights agree, with an operator that only one of both trainers has."""
    target = torch.randn(module(x).shape, generator=torch.Generator().manual_seed(3))
    wanted = in_torch(module, x, target)
    assert wanted[0] - wanted[-1] > 1e-3 * wanted[0]
    joined, weights, operators = trained(model, x, target, device, joined=True)
    apart, others, plain = trained(model, x, target, device, joined=False)
    assert operator in operators and operator not in plain
    assert joined == pytest.approx(wanted, rel=3e-6) and apart == pytest.approx(wanted, rel=3e-6)
    assert weights.keys() == others.keys()
    for name, value in weights.items():
        torch.testing.assert_close(value, others[name], rtol=1e-5, atol=1e-6)


@functools.cache
def gate(kind: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(1)
    module = Apart() if kind == "apart" else Gate(kind, bias=kind != "swiglu")
    return module, torch.randn(3, TOKENS, WIDTH)


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("kind", GATES)
def test_halves_of_one_projection_are_found(kind: str, optimize: bool) -> None:
    module, x = gate(kind)
    model, report = fused(exported(module, x, optimize))
    assert report.counts()["GatedHalves"] == 1 and report.missed == []
    graph = build_gradient_graph(model, ["x"], ["y"]).graph
    operators = [node.op_type for node in graph.node]
    assert "GatedHalvesGrad" in operators and not {"Split", "Slice", "Concat"} & {*operators}


@devices
@pytest.mark.parametrize("kind", [*GATES, "apart"])
def test_gated_layers_train_as_in_torch(kind: str, device: str) -> None:
    module, x = gate(kind)
    operator = "GatedGrad" if kind == "apart" else "GatedHalvesGrad"
    check_training(module, exported(module, x), x, device, operator)


def test_a_glu_of_two_projections_is_found() -> None:
    module, x = gate("apart")
    _, report = fused(exported(module, x))
    assert report.counts()["Gated"] == 1 and "GatedHalves" not in report.counts()


@functools.cache
def rotation(kind: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(2)
    return Rotated(kind), torch.randn(3, TOKENS, WIDTH)


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("kind", ROTATIONS)
def test_rotations_are_found(kind: str, optimize: bool) -> None:
    module, x = rotation(kind)
    model, report = fused(exported(module, x, optimize))
    assert report.counts()["Rotate"] == 1 and report.missed == []
    (node,) = (node for node in model.graph.node if node.op_type == "Rotate")
    found = {attr.name: attr.i for attr in node.attribute}
    assert found == ({} if kind == "halves" else {"interleaved": 1})


@devices
@pytest.mark.parametrize("kind", ROTATIONS)
def test_rotations_train_as_in_torch(kind: str, device: str) -> None:
    module, x = rotation(kind)
    check_training(module, exported(module, x), x, device, "Rotate")
