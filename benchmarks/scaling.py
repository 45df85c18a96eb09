"""How the time of a training step grows with batch, sequence length, depth and vocabulary.

python -m benchmarks scaling [--only batch depth] [--small] [--save]

A GPT-2 of width 512, exported by torch and trained in bfloat16; one size at a time is varied and
the others stay as they are. Torch eager with autocast trains the same model in the same run.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import contenders
from contenders import CLIP, LR, Batch, Model, Step
from growth import BASE, SMALL, SMALL_VALUES, VALUES, Size, growth, shown, sizes
from networks import export, measured
from onnxtrain import Trainer, onnxblock
from report import append, needs_gpu, table

WRONG = 0.02
"""Largest relative distance of the first losses, both in bfloat16, that is let through."""


def contender(size: Size) -> Model:
    return Model(
        lambda: contenders.gpt2(size.depth, size.width, size.vocabulary, size.sequence),
        lambda: contenders.token_batch(size.batch, size.sequence, size.vocabulary),
        contenders.token_loss,
        onnxblock.loss.TokenCrossEntropyLoss,
        tokens=size.batch * size.sequence,
    )


def measured_on_cpu(make: Callable[[], Step]) -> dict[str, Any]:
    """Median time of three steps; the memory of a CPU is not counted here."""
    start = time.perf_counter()
    step = make()
    loss = float(step())
    marks = [time.perf_counter()]
    for _ in range(3):
        step()
        marks.append(time.perf_counter())
    return {
        "ms": 1e3 * statistics.median(b - a for a, b in itertools.pairwise(marks)),
        "peak GB": "",
        "reserved GB": "",
        "first s": marks[0] - start,
        "loss": loss,
    }


def point(size: Size, device: str) -> dict[str, Any]:
    """Both ways at one size; torch's columns have its name in front."""
    torch.manual_seed(0)
    model = contender(size)
    module, batch = model.module(), model.batch()
    proto = export("gpt2", model, contenders.for_export(module), batch)
    batch = {key: value.to(device) for key, value in batch.items()}
    measure = measured_on_cpu if device == "cpu" else lambda make: measured(make, repeats=10)
    ours = measure(lambda: our_step(model, proto, batch, device))
    torchs = measure(lambda: contenders.torch_step(model, module, batch))
    if not math.isclose(ours["loss"], torchs["loss"], rel_tol=WRONG):
        sys.exit(f"{size}: loss {ours['loss']}, but torch's is {torchs['loss']}: no times")
    return {
        **{key: value for key, value in ours.items() if key != "loss"},
        **{f"torch {key}": torchs[key] for key in ("ms", "peak GB", "reserved GB")},
    }


def our_step(model: Model, proto: Any, batch: Batch, device: str) -> Step:
    trainer = Trainer(
        proto,
        loss=model.block(),
        lr=LR,
        clip_grad_norm=CLIP,
        device=device,
        precision="bf16",
        seed=0,
    )
    return lambda: trainer.step(batch)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", nargs="+", choices=VALUES, default=list(VALUES))
    arguments.add_argument(
        "--small", action="store_true", help="small sizes, to try the script without a GPU"
    )
    arguments.add_argument("--save", action="store_true", help="append to results/scaling.csv")
    options = arguments.parse_args()
    if options.small and options.save:
        sys.exit("small sizes only try the script: leave out --small or --save")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if not options.small:
        needs_gpu()
    base, values = (SMALL, SMALL_VALUES) if options.small else (BASE, VALUES)
    known: dict[Size, dict[str, Any]] = {}
    start = time.perf_counter()
    with contenders.fast_products():
        for axis in options.only:
            found = []
            for size in sizes(base, axis, values[axis]):
                known[size] = known.get(size) or point(size, device)
                found.append((size, known[size]))
                print(f"{time.perf_counter() - start:.0f} s: {size}", file=sys.stderr, flush=True)
            rows = growth(axis, found)
            print(table([shown(row) for row in rows]), flush=True)
            if options.save:
                print(append("scaling", rows, device))


if __name__ == "__main__":
    main()
