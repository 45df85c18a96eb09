"""Three small models as PyTorch's exporter writes them: an MLP, a CNN and a transformer."""

from __future__ import annotations

import dataclasses
import functools
import io
import warnings

import onnx
import torch
from exports import kept
from torch import nn


class Cnn(nn.Module):
    """Convolutions, batch normalisation, both poolings, dropout of 0 and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(1, 8, 3, padding=1)
        self.b1 = nn.BatchNorm2d(8)
        self.c2 = nn.Conv2d(8, 16, 3, padding=1)
        self.b2 = nn.BatchNorm2d(16)
        self.max = nn.MaxPool2d(2)
        self.mean = nn.AvgPool2d(2)
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(16 * 2 * 2, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.max(torch.relu(self.b1(self.c1(x))))
        x = self.mean(torch.relu(self.b2(self.c2(x))))
        return self.head(self.drop(x.flatten(1)))


class Encoder(nn.Module):
    """Embedding, two transformer layers, mean over the tokens and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, dropout=0.0, activation="gelu", batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.tokens(x)).mean(1))


def mlp() -> nn.Module:
    linear = [nn.Linear(a, b) for a, b in ((12, 32), (32, 32), (32, 10))]
    return nn.Sequential(linear[0], nn.ReLU(), linear[1], nn.Tanh(), linear[2])


@dataclasses.dataclass(frozen=True)
class Example:
    """A torch model in training mode, its ONNX file, and one batch."""

    module: nn.Module
    model: onnx.ModelProto
    inputs: torch.Tensor
    labels: torch.Tensor

    @property
    def input_name(self) -> str:
        return self.model.graph.input[0].name

    @property
    def output_name(self) -> str:
        return self.model.graph.output[0].name


def _export(
    module: nn.Module, inputs: torch.Tensor, dynamic: bool, optimize: bool
) -> onnx.ModelProto:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            (inputs,),
            dynamo=True,
            optimize=optimize,
            verbose=False,
            input_names=["x"],
            output_names=["scores"],
            dynamic_shapes=({0: torch.export.Dim("batch", min=2)},) if dynamic else None,
        )
    buffer = io.BytesIO()
    onnx.save(program.model_proto, buffer)
    return onnx.load_from_string(buffer.getvalue())


NAMES = ("mlp", "cnn", "transformer")


@functools.cache
def example(
    name: str, dtype: torch.dtype = torch.float32, dynamic: bool = True, optimize: bool = False
) -> Example:
    """A model by name, with seeded weights and data, for any batch size or for one.

    The exporter's optimiser renames weights and folds batch normalisation into convolutions, so
    models are exported without it unless a test asks for it.
    """
    torch.manual_seed(7)
    module = {"mlp": mlp, "cnn": Cnn, "transformer": Encoder}[name]().to(dtype)
    inputs = {
        "mlp": lambda: torch.randn(6, 12, dtype=dtype),
        "cnn": lambda: torch.randn(6, 1, 8, 8, dtype=dtype),
        "transformer": lambda: torch.randint(0, 50, (6, 5)),
    }[name]()
    labels = torch.randint(0, 10, (6,))
    key = f"zoo-{name}-{dtype}-{dynamic}-{optimize}"
    model = kept(key, module, lambda: _export(module.eval(), inputs, dynamic, optimize))
    return Example(module.train(), model, inputs, labels)
