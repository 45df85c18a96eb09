"""Whole training steps (forward, backward, AdamW) against torch eager, in one run.

python benchmarks/steps.py [--device cuda] [--save]
"""

from __future__ import annotations

import argparse
import copy
import io
import itertools
import statistics
import time
import warnings

import onnx
import torch
import torch.nn.functional as F
from torch import nn

from onnxtrain import Trainer
from report import append, table


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *[nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)],
            *[nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)],
            *[nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.Flatten()],
            nn.Linear(128 * 8 * 8, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(1000, 256)
        layer = nn.TransformerEncoderLayer(
            256, 4, 1024, dropout=0.0, activation="gelu", batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.tokens(x)).mean(1))


def mlp() -> nn.Module:
    sizes = (784, 512, 512, 10)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


MODELS = {
    "MLP 784-512-512-10, B64": (mlp, lambda: torch.randn(64, 784)),
    "CNN 3 conv, 32x32, B32": (Cnn, lambda: torch.randn(32, 3, 32, 32)),
    "transformer 4 x 256, T128, B8": (Encoder, lambda: torch.randint(0, 1000, (8, 128))),
}


def export(module: nn.Module, x: torch.Tensor) -> onnx.ModelProto:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module.eval(), (x,), dynamo=True, verbose=False, input_names=["x"]
        )
    buffer = io.BytesIO()
    onnx.save(program.model_proto, buffer)
    return onnx.load_from_string(buffer.getvalue())


def milliseconds(step, device: str, seconds: float = 2.0) -> float:
    for _ in range(5):
        step()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def torch_step(module: nn.Module, x: torch.Tensor, labels: torch.Tensor, device: str):
    module = copy.deepcopy(module).train().to(device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.0, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(module(x), labels).backward()
        optimizer.step()

    return step


def measure(name: str, device: str) -> dict[str, object]:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    module, x = make(), inputs()
    model = export(module, x)
    x, labels = x.to(device), torch.randint(0, 10, (len(x),)).to(device)
    trainer = Trainer(model, loss="cross_entropy", lr=1e-4, device=device)
    batch = {"x": x, "labels": labels}
    ours = milliseconds(lambda: trainer.step(batch), device)
    peer = milliseconds(torch_step(module, x, labels, device), device)
    again = milliseconds(lambda: trainer.step(batch), device)
    steps = len(trainer.module.runner(training=True).plan.block.steps)
    return {
        "model": name,
        "onnxtrain ms": min(ours, again),
        "torch eager ms": peer,
        "ratio": min(ours, again) / peer,
        "plan steps": steps,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--save", action="store_true", help="append to results/steps.csv")
    options = arguments.parse_args()
    rows = [measure(name, options.device) for name in MODELS]
    print(table(rows))
    if options.save:
        print(append("steps", rows, options.device))


if __name__ == "__main__":
    main()
