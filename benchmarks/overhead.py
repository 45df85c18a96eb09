"""What onnxtrain itself costs: Python time per node of a plan, import time, answer time.

python benchmarks/overhead.py [--save]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

import onnx_ir as ir
import torch

from onnxtrain.graph.prepare import prepare
from onnxtrain.kernels.registry import KernelRegistry, kernel
from onnxtrain.runtime.lower import lower
from onnxtrain.runtime.program import Program
from report import append, table

NODES = 1000
PRIVATE = KernelRegistry()


@kernel("Neg", since=1, registry=PRIVATE)
def nothing(x: torch.Tensor) -> torch.Tensor:
    """A kernel that does nothing, so that only the plan's own cost is left."""
    return x


def chain(nodes: int) -> ir.Model:
    x = ir.val("x", ir.DataType.FLOAT, ["n"])
    made, last = [], x
    for index in range(nodes):
        node = ir.node("Neg", [last], name=f"node_{index}")
        last = node.outputs[0]
        last.name = f"v_{index}"
        made.append(node)
    last.type, last.shape = x.type, x.shape
    graph = ir.Graph([x], [last], nodes=made, opset_imports={"": 21}, name="chain")
    return ir.Model(graph, ir_version=10)


def best(fn, repeat: int = 30) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        fn()
        times.append(time.perf_counter() - start)
    return min(times)


def per_node() -> dict[str, float]:
    started = time.perf_counter()
    program = Program(lower(prepare(chain(NODES)), PRIVATE), torch.device("cpu"))
    planned = time.perf_counter() - started
    x = torch.zeros(4)

    def bare() -> None:
        for _ in range(NODES):
            nothing(x)

    def loop() -> None:
        for _ in range(NODES):
            pass

    whole, calls = best(lambda: program(x)), best(bare) - best(loop)
    return {
        "what": "plan, per node",
        "microseconds": (whole - calls) / NODES * 1e6,
        "note": f"whole {whole / NODES * 1e6:.3f}, bare call {calls / NODES * 1e6:.3f}, "
        f"planning {planned / NODES * 1e6:.0f} once",
    }


def import_seconds(code: str) -> float:
    """Time of some imports in a fresh process that has imported torch already."""
    timed = f"import torch, time; t = time.perf_counter(); {code}; print(time.perf_counter() - t)"
    runs = [subprocess.check_output([sys.executable, "-c", timed]) for _ in range(5)]
    return statistics.median(float(run) for run in runs)


def seconds_of(code: str) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def start_up() -> list[dict[str, object]]:
    everything = "import onnxtrain; onnxtrain.InferenceSession; onnxtrain.Trainer"
    plain = import_seconds("import onnxtrain")
    whole = import_seconds(everything)
    answer = seconds_of("from onnxtrain.cli import app; app(['--help'], standalone_mode=False)")
    return [
        {
            "what": "import onnxtrain beyond torch",
            "microseconds": plain * 1e6,
            "note": "the rest is imported when it is first used",
        },
        {
            "what": "session and trainer beyond torch",
            "microseconds": whole * 1e6,
            "note": "every module that training needs",
        },
        {
            "what": "onnxtrain --help",
            "microseconds": answer * 1e6,
            "note": "process start included",
        },
    ]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--save", action="store_true", help="append to results/overhead.csv")
    options = arguments.parse_args()
    rows = [per_node(), *start_up()]
    print(table(rows))
    if options.save:
        print(append("overhead", rows))


if __name__ == "__main__":
    main()
