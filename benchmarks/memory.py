"""The most bytes that are alive in a training step, against torch eager.

Values may be computed again instead of being kept (``recompute``), or wait in fewer bits
(``compress``), which takes time: so steps are timed, too.

python benchmarks/memory.py [--device cuda] [--only bert llama] [--small] [--save]

``--only`` without a name measures small models and none of the nine.

Both do the same: forward, backward and AdamW on one batch, after a first step that makes what is
kept. Counted are weights, gradients, moments and everything that a step allocates; on the CPU by
the allocations that torch's profiler reports, on CUDA by torch's own allocator.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import gc
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from onnxtrain import Trainer
from onnxtrain.transforms.compress import EXACT
from onnxtrain.transforms.recipe import AS_THEY_ARE, Waiting
from onnxtrain.transforms.recompute import CHEAP, LAYERS
from report import append, table
from steps import MODELS as SPINE
from steps import Encoder, export
from whole import NAMES, example

Step = Callable[[], object]
Pair = tuple[Callable[[Waiting], Step], Callable[[], Step]]
"""Makes our step, by how values wait for its backward pass, and torch's."""
LESS = {
    CHEAP: Waiting(CHEAP),
    LAYERS: Waiting(LAYERS),
    EXACT: Waiting(compress=EXACT),
    "pack8": Waiting(compress="pack8"),
    "cheap, pack8": Waiting(CHEAP, "pack8"),
}
MODELS = {
    **SPINE,
    "transformer 12 x 256, T128, B32": (
        lambda: Encoder(layers=12),
        lambda: torch.randint(0, 1000, (32, 128)),
    ),
}
TIMED = 7
LENGTH = 128
MEASURED = "measured step"


def held() -> int:
    """Bytes of the tensors on the CPU that Python can see, each storage once.

    Exporting leaves tensors without storage behind, which are of other classes.
    """
    gc.collect()
    real = (torch.Tensor, torch.nn.Parameter)
    tensors = [t for t in gc.get_objects() if type(t) in real and t.device.type == "cpu"]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def peak_on_cpu(make: Callable[[], Step]) -> int:
    before = held()
    step = make()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiled:
        step()  # also in sight of the profiler, which reports only what it saw being allocated
        kept = held() - before
        with torch.profiler.record_function(MEASURED):
            step()
    events = sorted(profiled.profiler.kineto_results.events(), key=lambda e: e.start_ns())
    begin = next(e.start_ns() for e in events if e.name() == MEASURED)
    running = highest = kept
    for event in events:
        if event.name() == "[memory]" and event.start_ns() >= begin:
            running += event.nbytes()
            highest = max(highest, running)
    return highest


def peak_on_cuda(make: Callable[[], Step]) -> int:
    gc.collect()
    before = torch.cuda.memory_allocated()
    step = make()
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def torch_step(module, inputs, labels, loss, device: str) -> Step:
    module = copy.deepcopy(module).train().to(device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.0, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        loss(module(**inputs), labels).backward()
        optimizer.step()

    return step


def spine(name: str, device: str) -> Pair:
    """One of the three models of ``steps.py``, or a deeper one."""
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    module, x = make(), inputs()
    model = export(module, x)
    x, labels = x.to(device), torch.randint(0, 10, (len(x),)).to(device)

    def ours(waiting: Waiting) -> Step:
        trainer = Trainer(
            model, loss="cross_entropy", lr=1e-4, device=device, **dataclasses.asdict(waiting)
        )
        return lambda: trainer.step({"x": x, "labels": labels})

    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    return ours, lambda: torch_step(Named(), {"x": x}, labels, F.cross_entropy, device)


def whole(name: str, device: str, large: bool, samples: int) -> Pair:
    """One of the nine architectures."""
    found = example(name, large=large)
    given = found.batch(samples, LENGTH if large else 16)
    with torch.no_grad():
        labels = found.labels(found.scores(given)).to(device)
    inputs = {key: value.to(device) for key, value in given.items()}

    def loss(result, labels: torch.Tensor) -> torch.Tensor:
        return found.loss(result if isinstance(result, torch.Tensor) else result.logits, labels)

    def ours(waiting: Waiting) -> Step:
        trainer = Trainer(
            found.model,
            loss=lambda o, b: loss(o["scores"], b["labels"]),
            lr=1e-4,
            device=device,
            **dataclasses.asdict(waiting),
        )
        return lambda: trainer.step({**inputs, "labels": labels})

    return ours, lambda: torch_step(found.module, inputs, labels, loss, device)


def measure(name: str, pair: Pair, device: str) -> dict[str, object]:
    peak = peak_on_cuda if device == "cuda" else peak_on_cpu
    make, torchs = pair
    makes = {way: functools.partial(make, of) for way, of in {"": AS_THEY_ARE, **LESS}.items()}
    peaks = {way: peak(of) / 2**20 for way, of in makes.items()}
    times = {way: milliseconds(of(), device) for way, of in makes.items()}
    theirs = peak(torchs) / 2**20
    return {
        "model": name,
        "on": device,
        "onnxtrain MiB": peaks[""],
        "torch eager MiB": theirs,
        "ratio": peaks[""] / theirs,
        "ms": times[""],
        **{f"{way} MiB": peaks[way] for way in LESS},
        **{f"{way} ms": times[way] for way in LESS},
    }


def milliseconds(step: Step, device: str) -> float:
    """The median of some steps, after a first one."""
    found = []
    for _ in range(TIMED + 1):
        start = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append((time.perf_counter() - start) * 1e3)
    return statistics.median(found[1:])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--only", nargs="*", choices=NAMES, help="of the nine, if any")
    arguments.add_argument("--samples", type=int, default=8)
    arguments.add_argument("--small", action="store_true", help="the nine in the tests' sizes")
    arguments.add_argument("--save", action="store_true", help="append to results/memory.csv")
    options = arguments.parse_args()
    device, large = options.device, not options.small
    names = NAMES if options.only is None else options.only
    rows = [measure(n, spine(n, device), device) for n in ([] if options.only else MODELS)]
    rows += [measure(n, whole(n, device, large, options.samples), device) for n in names]
    print(table(rows))
    if options.save:
        print(append("memory", rows, options.device))


if __name__ == "__main__":
    main()
