"""Whole training steps (forward, backward, AdamW) against torch eager and onnxruntime-training.

python benchmarks/steps.py [--device cuda] [--reference PYTHON] [--only MLP] [--save]

All contenders train every parameter of the same model on the same batch. They take turns in short
bursts, and ratios are medians over the turns, so that other work on the machine meets all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import itertools
import pathlib
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from torch import nn

from onnxtrain import Trainer, artifacts
from report import append, table

ROUNDS = 9
Burst = Callable[[float], float]
"""Runs steps for some seconds; gives the median time of one in milliseconds."""
OURS, TORCH, REFERENCE = "onnxtrain", "torch eager", "reference"


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
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(1000, 256)
        layer = nn.TransformerEncoderLayer(
            256, 4, 1024, dropout=0.0, activation="gelu", batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
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


def burst(step: Callable[[], object], device: str) -> Burst:
    """Bursts of a step in this process."""

    def run(seconds: float) -> float:
        times: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return statistics.median(times) * 1e3

    return run


@contextlib.contextmanager
def reference(
    python: str, model: onnx.ModelProto, batch: dict[str, torch.Tensor]
) -> Iterator[Burst]:
    """With: bursts of onnxruntime-training in a process of its own."""
    trained = [i.name for i in model.graph.initializer if i.data_type == 1 and i.dims]
    with tempfile.TemporaryDirectory() as folder:
        artifacts.generate_artifacts(
            model,
            requires_grad=trained,
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=folder,
        )
        np.savez(pathlib.Path(folder) / "batch.npz", **{k: v.numpy() for k, v in batch.items()})
        script = pathlib.Path(__file__).with_name("reference_steps.py")
        command = [python, str(script), folder, str(torch.get_num_threads())]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:

            def run(seconds: float) -> float:
                print(seconds, file=process.stdin)
                return float(process.stdout.readline())

            yield run
            process.stdin.close()


def torch_step(module: nn.Module, x: torch.Tensor, labels: torch.Tensor, device: str):
    module = copy.deepcopy(module).train().to(device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.0, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(module(x), labels).backward()
        optimizer.step()

    return step


def distinct(module: nn.Module) -> nn.Module:
    """The module with no two weights alike: an exporter would make one of them."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.01 * torch.randn_like(parameter)
    return module


def take_turns(bursts: dict[str, Burst], seconds: float) -> dict[str, list[float]]:
    """Times of all contenders, turn by turn; the first turn only warms up."""
    times: dict[str, list[float]] = {name: [] for name in bursts}
    for turn in range(ROUNDS + 1):
        for name, run in bursts.items():
            found = run(seconds)
            if turn:
                times[name].append(found)
    return times


def ratio(times: dict[str, list[float]], peer: str) -> float | str:
    """How many times as long as a peer we take; empty if it was not measured."""
    if peer not in times:
        return ""
    return statistics.median(a / b for a, b in zip(times[OURS], times[peer], strict=True))


def better(medians: dict[str, float]) -> str:
    """The faster of the peers that were measured."""
    return min((peer for peer in medians if peer != OURS), key=lambda peer: medians[peer])


def measure(name: str, device: str, python: str | None, seconds: float) -> dict[str, object]:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    module, x = distinct(make()), inputs()
    model = export(module, x)
    batch = {"x": x, "labels": torch.randint(0, 10, (len(x),))}
    with contextlib.ExitStack() as stack:
        bursts: dict[str, Burst] = {}
        if python is not None:
            bursts[REFERENCE] = stack.enter_context(reference(python, model, batch))
        batch = {key: value.to(device) for key, value in batch.items()}
        trainer = Trainer(model, loss="cross_entropy", lr=1e-4, device=device)
        bursts[OURS] = burst(lambda: trainer.step(batch), device)
        bursts[TORCH] = burst(torch_step(module, batch["x"], batch["labels"], device), device)
        times = take_turns(bursts, seconds)
    medians = {key: statistics.median(found) for key, found in times.items()}
    return {
        "model": name,
        "onnxtrain ms": medians[OURS],
        "torch eager ms": medians[TORCH],
        "ratio": ratio(times, TORCH),
        "plan steps": len(trainer.module.runner(training=True).plan.block.steps),
        "reference ms": medians.get(REFERENCE, ""),
        "reference ratio": ratio(times, REFERENCE),
        "better peer": better(medians),
        "ratio to it": ratio(times, better(medians)),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--save", action="store_true", help="append to results/steps.csv")
    arguments.add_argument("--reference", help="interpreter that has onnxruntime-training 1.19.2")
    arguments.add_argument("--only", default="", help="models whose name begins so")
    arguments.add_argument("--seconds", type=float, default=0.6, help="length of a burst")
    options = arguments.parse_args()
    names = [name for name in MODELS if name.startswith(options.only)]
    given = (options.device, options.reference, options.seconds)
    rows = [measure(name, *given) for name in names]
    print(table(rows))
    if options.save:
        print(append("steps", rows, options.device))


if __name__ == "__main__":
    main()
