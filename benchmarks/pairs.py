"""The same training step of the same model twice: as onnxtrain and as torch eager takes it."""

from __future__ import annotations

import copy
import dataclasses
import io
import itertools
import warnings
from collections.abc import Callable, Mapping

import onnx
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxtrain import Trainer
from onnxtrain.transforms.recipe import AS_THEY_ARE, Waiting
from whole import NAMES, example

Step = Callable[[], object]
Inputs = dict[str, Tensor]
LR, LENGTH = 1e-4, 128
"""The rate, and tokens of a sample of the nine architectures."""


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *[nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)],
            *[nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)],
            *[nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.Flatten()],
            nn.Linear(128 * 8 * 8, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Encoder(nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(1000, 256)
        layer = nn.TransformerEncoderLayer(
            256, 4, 1024, dropout=0.0, activation="gelu", batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.tokens(x)).mean(1))


def mlp() -> nn.Module:
    sizes = (784, 512, 512, 10)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


SPINE = {
    "MLP 784-512-512-10, B64": (mlp, lambda: torch.randn(64, 784)),
    "CNN 3 conv, 32x32, B32": (Cnn, lambda: torch.randn(32, 3, 32, 32)),
    "transformer 4 x 256, T128, B8": (Encoder, lambda: torch.randint(0, 1000, (8, 128))),
}
DEEP = {
    "transformer 12 x 256, T128, B32": (
        lambda: Encoder(layers=12),
        lambda: torch.randint(0, 1000, (32, 128)),
    ),
}


@dataclasses.dataclass(frozen=True)
class Pair:
    """A model, a batch, and who trains it.

    Attributes:
        model: The model as it was exported.
        module: The same as a torch module.
        inputs: What the module is called with, by name.
        labels: What is to be predicted.
        loss: What the module gives, and labels, to a loss.
        known: The name of that loss, if it is one that onnxtrain adds to the graph.
        scores: What the model's output is called, if the loss is computed in torch.
    """

    model: onnx.ModelProto
    module: nn.Module
    inputs: Inputs
    labels: Tensor
    loss: Callable[[object, Tensor], Tensor]
    known: str | None = None
    scores: str = "scores"

    @property
    def batch(self) -> Inputs:
        """Inputs and labels by the names that onnxtrain has for them."""
        return {**self.inputs, "labels": self.labels}

    def trainer(self, device: str, waiting: Waiting = AS_THEY_ARE) -> Trainer:
        """Trains the model by AdamW."""

        def in_torch(outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
            return self.loss(outputs[self.scores], batch["labels"])

        options = {"lr": LR, "device": device, **dataclasses.asdict(waiting)}
        return Trainer(self.model, loss=self.known or in_torch, **options)

    def ours(self, device: str, waiting: Waiting = AS_THEY_ARE) -> Step:
        """A step of onnxtrain."""
        trainer = self.trainer(device, waiting)
        batch = {name: value.to(device) for name, value in self.batch.items()}
        return lambda: trainer.step(batch)

    def torchs(self, device: str, compiled: bool = False) -> Step:
        """A step of torch, with its fused AdamW; forward and backward compiled or not."""
        module = copy.deepcopy(self.module).train().to(device)
        options = {"lr": LR, "weight_decay": 0.0, "fused": True}
        optimizer = torch.optim.AdamW(module.parameters(), **options)
        inputs = {name: value.to(device) for name, value in self.inputs.items()}
        labels = self.labels.to(device)

        def forward() -> Tensor:
            return self.loss(module(**inputs), labels)

        loss = torch.compile(forward) if compiled else forward

        def step() -> None:
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

        return step


def spine(name: str) -> Pair:
    """One of ``SPINE`` or ``DEEP``, which give scores of ten classes."""
    torch.manual_seed(0)
    make, inputs = {**SPINE, **DEEP}[name]
    module, x = distinct(make()), inputs()
    labels = torch.randint(0, 10, (len(x),))
    return Pair(
        export(module, x), _Named(module), {"x": x}, labels, F.cross_entropy, "cross_entropy"
    )


def whole(name: str, samples: int, large: bool = True) -> Pair:
    """One of the nine architectures, with a loss in torch."""
    found = example(name, large=large)
    given = found.batch(samples, LENGTH if large else 16)
    with torch.no_grad():
        labels = found.labels(found.scores(given))

    def loss(result: object, labels: Tensor) -> Tensor:
        return found.loss(result if isinstance(result, Tensor) else result.logits, labels)

    return Pair(found.model, found.module, given, labels, loss)


class _Named(nn.Module):
    """A module whose input is called x."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def distinct(module: nn.Module) -> nn.Module:
    """The module with no two weights alike: an exporter would make one of them."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.01 * torch.randn_like(parameter)
    return module


def export(module: nn.Module, x: Tensor) -> onnx.ModelProto:
    """The module as an ONNX model with the input x."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module.eval(), (x,), dynamo=True, verbose=False, input_names=["x"]
        )
    buffer = io.BytesIO()
    onnx.save(program.model_proto, buffer)
    return onnx.load_from_string(buffer.getvalue())


__all__ = ["DEEP", "NAMES", "SPINE", "Pair", "Step", "spine", "whole"]
