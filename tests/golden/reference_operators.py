"""Run small models with onnxruntime-training 1.19.2, each in a process of its own.

Runs in an environment that has ``onnxruntime-training-cpu==1.19.2``:

    python reference_operators.py FOLDER

For each ``NAME.onnx`` of FOLDER, ``NAME.pickle`` holds the inputs by name (an array, or a list of
arrays for a sequence). ``NAME.result`` receives ``("values", outputs)`` in the model's order, or
``("error", category)``: the name of the exception, or ``crash`` where the process died.
"""

import os
import pathlib
import pickle
import signal
import sys
from typing import Any

import numpy as np
import onnxruntime

PATIENCE = 20
"""Seconds after which a process is ended."""


def outcome(model: pathlib.Path) -> tuple[str, Any]:
    """What the reference makes of a model."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    feeds = pickle.loads(model.with_suffix(".pickle").read_bytes())
    providers = ["CPUExecutionProvider"]
    try:
        session = onnxruntime.InferenceSession(str(model), options, providers=providers)
        return "values", session.run(None, feeds)
    except UnicodeDecodeError as error:
        # It reads every string as text; the error is the only way to one that is not.
        return "values", [np.array(error.object, dtype=object)]
    except Exception as error:
        return "error", type(error).__name__


def run_alone(model: pathlib.Path) -> None:
    """Run a model in a fork, so that a crash loses this one only."""
    result = model.with_suffix(".result")
    result.write_bytes(pickle.dumps(("error", "crash")))
    child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE)
        result.write_bytes(pickle.dumps(outcome(model)))
        os._exit(0)
    os.waitpid(child, 0)


if __name__ == "__main__":
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.onnx")):
        run_alone(path)
