"""Training steps of onnxruntime-training, in a process of its own that steps.py talks to.

python benchmarks/reference_steps.py FOLDER THREADS

The folder has the artifacts and ``batch.npz``. Every line of the input is a number of seconds; the
answer is the median time of the steps that fit into them, in milliseconds.
"""

from __future__ import annotations

import pathlib
import statistics
import sys
import time

import numpy as np
import onnxruntime
from onnxruntime.training.api import CheckpointState, Module, Optimizer


def main() -> None:
    folder, threads = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    models = [str(folder / f"{name}_model.onnx") for name in ("training", "eval", "optimizer")]
    module = Module(models[0], state, models[1], session_options=options)
    optimizer = Optimizer(models[2], module)
    batch = np.load(folder / "batch.npz")
    inputs = [batch[name] for name in module.input_names()]
    for line in sys.stdin:
        times: list[float] = []
        end = time.perf_counter() + float(line)
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            module(*inputs)
            optimizer.step()
            module.lazy_reset_grad()
            times.append(time.perf_counter() - start)
        print(statistics.median(times) * 1e3, flush=True)


if __name__ == "__main__":
    main()
