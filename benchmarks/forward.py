"""Forward passes of nine architectures against onnxruntime on the CPU and torch eager, in one run.

python benchmarks/forward.py [--device cuda] [--only bert llama] [--small] [--save]

A model's times are printed only after its outputs were found equal to those of both peers.
"""

from __future__ import annotations

import argparse

import numpy as np
import onnxruntime
import torch

from onnxtrain import InferenceSession
from report import append, table
from turns import burst, medians, take_turns
from whole import NAMES, Example, example, optimized

WRONG = 1e-3
"""Largest error that is let through, relative to the largest output."""
OURS, ORT, TORCH = "onnxtrain", "onnxruntime", "torch eager"
SECONDS, ROUNDS = 0.4, 5
"""Length of a burst, and turns."""


def peer_session(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def check(name: str, ours: torch.Tensor, peers: dict[str, torch.Tensor]) -> None:
    """Refuse to time a wrong result."""
    for peer, theirs in peers.items():
        error = float((ours.cpu() - theirs.cpu()).abs().max() / theirs.abs().max())
        if not error < WRONG:
            raise SystemExit(f"{name}: outputs are {error:.1e} off those of {peer}, no times")


def measure(name: str, device: str, large: bool, samples: int, length: int) -> dict[str, object]:
    whole: Example = example(name, large=large)
    model = optimized(name, large=large)
    inputs = whole.batch(samples, length)
    feeds = {key: value.numpy() for key, value in inputs.items()}
    here = {key: value.to(device) for key, value in inputs.items()}
    session = InferenceSession(model, providers=[f"{device.upper()}ExecutionProvider"])
    peer = peer_session(model.SerializeToString())
    module = whole.module.to(device)

    def eager() -> torch.Tensor:
        with torch.inference_mode():
            return whole.scores(here)

    def ours() -> torch.Tensor:
        return session.run_torch(None, here)[0]

    theirs = torch.from_numpy(np.asarray(peer.run(None, feeds)[0]))
    check(name, ours(), {"onnxruntime": theirs, "torch": eager()})
    bursts = {
        OURS: burst(ours, device),
        ORT: burst(lambda: peer.run(None, feeds), "cpu"),
        TORCH: burst(eager, device),
    }
    taken = medians(take_turns(bursts, SECONDS, ROUNDS))
    return {
        "model": name,
        "on": device,
        "samples": samples,
        "length": length,
        "weights": sum(p.numel() for p in module.parameters()),
        "onnxtrain ms": taken[OURS],
        "onnxruntime CPU ms": taken[ORT],
        "torch eager ms": taken[TORCH],
        "to onnxruntime": taken[OURS] / taken[ORT],
        "to torch": taken[OURS] / taken[TORCH],
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    arguments.add_argument("--samples", type=int, default=8)
    arguments.add_argument("--length", type=int, default=128, help="tokens of a sample")
    arguments.add_argument("--small", action="store_true", help="the sizes of the tests")
    arguments.add_argument("--save", action="store_true", help="append to results/forward.csv")
    options = arguments.parse_args()
    torch.backends.cudnn.allow_tf32 = False  # all of float32, as the peer on the CPU has it
    length = min(options.length, 16) if options.small else options.length
    rows = [
        measure(name, options.device, not options.small, options.samples, length)
        for name in options.only
    ]
    print(table(rows))
    if options.save:
        print(append("forward", rows, options.device))


if __name__ == "__main__":
    main()
