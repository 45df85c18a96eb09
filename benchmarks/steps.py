"""Whole training steps (forward, backward, AdamW) against torch and onnxruntime-training.

python benchmarks/steps.py [--device cuda] [--reference PYTHON] [--only MLP] [--save]
python benchmarks/steps.py --whole [bert llama] [--samples 8]

All contenders train every parameter of the same model on the same batch. They take turns in short
bursts, and ratios are medians over the turns, so that other work on the machine meets all of them.
``--whole`` measures the nine architectures, or some of them, instead of the three small models,
``--compile`` torch.compile as well.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import subprocess
import tempfile
from collections.abc import Iterator

import numpy as np
import torch

from onnxtrain import artifacts
from pairs import NAMES, SPINE, Pair, spine, whole
from report import append, table
from turns import Burst, burst, medians, ratio, take_turns

OURS, TORCH, COMPILED, REFERENCE = "onnxtrain", "torch eager", "torch.compile", "reference"
ROUNDS_OF_WHOLE = 5


@contextlib.contextmanager
def reference(python: str, pair: Pair) -> Iterator[Burst]:
    """With: bursts of onnxruntime-training in a process of its own."""
    trained = [i.name for i in pair.model.graph.initializer if i.data_type == 1 and i.dims]
    with tempfile.TemporaryDirectory() as folder:
        artifacts.generate_artifacts(
            pair.model,
            requires_grad=trained,
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=folder,
        )
        batch = {name: value.numpy() for name, value in pair.batch.items()}
        np.savez(pathlib.Path(folder) / "batch.npz", **batch)
        script = pathlib.Path(__file__).with_name("reference_steps.py")
        command = [python, str(script), folder, str(torch.get_num_threads())]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:

            def run(seconds: float) -> float:
                print(seconds, file=process.stdin)
                return float(process.stdout.readline())

            yield run
            process.stdin.close()


def better(times: dict[str, float]) -> str:
    """The faster of the peers that were measured."""
    return min((peer for peer in times if peer != OURS), key=lambda peer: times[peer])


def torchs(pair: Pair, device: str, compiled: bool) -> dict[str, Burst]:
    """Bursts of torch's ways to take the step; one that does not compile is left out."""
    bursts = {TORCH: burst(pair.torchs(device), device)}
    if compiled:
        step = pair.torchs(device, compiled=True)
        try:
            step()
            bursts[COMPILED] = burst(step, device)
        except torch._dynamo.exc.TorchDynamoException as error:
            print(f"torch.compile: {str(error).splitlines()[0]}")
    return bursts


def measure(
    name: str, device: str, python: str | None, seconds: float, compiled: bool
) -> dict[str, object]:
    """One of the three small models, with all peers."""
    pair = spine(name)
    with contextlib.ExitStack() as stack:
        bursts: dict[str, Burst] = {}
        if python is not None:
            bursts[REFERENCE] = stack.enter_context(reference(python, pair))
        trainer = pair.trainer(device)
        batch = {key: value.to(device) for key, value in pair.batch.items()}
        bursts[OURS] = burst(lambda: trainer.step(batch), device)
        bursts |= torchs(pair, device, compiled)
        times = take_turns(bursts, seconds)
    taken = medians(times)
    return {
        **beside_torch(name, times),
        "plan steps": len(trainer.module.runner(training=True).plan.block.steps),
        "reference ms": taken.get(REFERENCE, ""),
        "reference ratio": ratio(times, OURS, REFERENCE),
        "better peer": better(taken),
        "ratio to it": ratio(times, OURS, better(taken)),
    }


def measure_whole(
    name: str, device: str, samples: int, seconds: float, compiled: bool
) -> dict[str, object]:
    """One of the nine architectures, beside torch."""
    pair = whole(name, samples)
    bursts = {OURS: burst(pair.ours(device), device), **torchs(pair, device, compiled)}
    times = take_turns(bursts, seconds, ROUNDS_OF_WHOLE)
    return {**beside_torch(name, times), "samples": samples}


def beside_torch(name: str, times: dict[str, list[float]]) -> dict[str, object]:
    """What is said of every model."""
    taken = medians(times)
    return {
        "model": name,
        "onnxtrain ms": taken[OURS],
        "torch eager ms": taken[TORCH],
        "ratio": ratio(times, OURS, TORCH),
        "torch.compile ms": taken.get(COMPILED, ""),
        "compiled ratio": ratio(times, OURS, COMPILED),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--save", action="store_true", help="append to results/steps.csv")
    arguments.add_argument("--reference", help="interpreter that has onnxruntime-training 1.19.2")
    arguments.add_argument("--only", default="", help="models whose name begins so")
    arguments.add_argument("--whole", nargs="*", choices=NAMES, help="of the nine, all or these")
    arguments.add_argument("--samples", type=int, default=8, help="a batch of the nine")
    arguments.add_argument("--compile", action="store_true", help="torch.compile as well")
    arguments.add_argument("--seconds", type=float, default=0.6, help="length of a burst")
    options = arguments.parse_args()
    device, seconds, compiled = options.device, options.seconds, options.compile
    if options.whole is None:
        names = [name for name in SPINE if name.startswith(options.only)]
        rows = [measure(name, device, options.reference, seconds, compiled) for name in names]
    else:
        names = options.whole or NAMES
        rows = [measure_whole(name, device, options.samples, seconds, compiled) for name in names]
    print(table(rows))
    if options.save:
        print(append("steps", rows, device))


if __name__ == "__main__":
    main()
