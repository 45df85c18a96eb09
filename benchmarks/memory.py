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
import functools
import gc
from collections.abc import Callable

import torch

from onnxtrain.transforms.compress import EXACT
from onnxtrain.transforms.recipe import AS_THEY_ARE, Waiting
from onnxtrain.transforms.recompute import CHEAP, LAYERS
from pairs import DEEP, NAMES, SPINE, Pair, Step, spine, whole
from report import append, table
from turns import burst

LESS = {
    CHEAP: Waiting(CHEAP),
    LAYERS: Waiting(LAYERS),
    EXACT: Waiting(compress=EXACT),
    "pack8": Waiting(compress="pack8"),
    "cheap, pack8": Waiting(CHEAP, "pack8"),
}
SECONDS = 3.0
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


def measure(name: str, pair: Pair, device: str) -> dict[str, object]:
    peak = peak_on_cuda if device == "cuda" else peak_on_cpu
    ways = {"": AS_THEY_ARE, **LESS}
    makes = {way: functools.partial(pair.ours, device, of) for way, of in ways.items()}
    peaks = {way: peak(of) / 2**20 for way, of in makes.items()}
    times = {way: burst(of(), device)(SECONDS) for way, of in makes.items()}
    theirs = peak(functools.partial(pair.torchs, device)) / 2**20
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
    small = [] if options.only else [*SPINE, *DEEP]
    rows = [measure(n, spine(n), device) for n in small]
    rows += [measure(n, whole(n, options.samples, large), device) for n in names]
    print(table(rows))
    if options.save:
        print(append("memory", rows, options.device))


if __name__ == "__main__":
    main()
