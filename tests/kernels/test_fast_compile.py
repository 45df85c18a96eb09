"""Triton kernels as machine code for GPUs that are not there: more than an interpreter sees."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")
import gpu
from kernels.fast import modules
from onnxtrain.kernels.fast.common.cluster import InClusters
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.parted import Grouped

SCRIPT = Path(__file__).with_name("compile_for.py")


def _kernels(capability: int) -> set[str]:
    """All by module and name, generated ones too; clusters, which not all GPUs have, have more."""
    found = {
        f"{module.__name__.rpartition('.')[2]}.{name}": kernel.function
        for module in modules()
        for name, kernel in vars(module).items()
        if isinstance(kernel, Compiled | Grouped)
    }
    alone = {name for name, function in found.items() if not isinstance(function, InClusters)}
    alone.add("generated.chain")
    clusters = (f.function.fn for f in found.values() if isinstance(f, InClusters))
    inner = {f"{f.__module__.rpartition('.')[2]}.{f.__name__}" for f in clusters}
    return alone | inner if capability >= 90 else alone


def test_sanitizers_look_at_every_kernel() -> None:
    pattern = re.compile(gpu.CHECKED.removeprefix("regex="))
    names = {name.partition(".")[2] for name in _kernels(90)} | {*gpu.PLANTED.values()}
    assert len(names) > 50
    assert not [name for name in names if not pattern.search(name)]
    assert not pattern.search("_ZN2at6native29vectorized_elementwise_kernelIf"), "one of torch's"


@pytest.mark.parametrize(
    ("capability", "dtype"), [(86, "bfloat16"), (90, "bfloat16"), (90, "float32")]
)
def test_every_kernel_is_compiled(capability: int, dtype: str) -> None:
    """Capability 8.6 has the oldest instructions and the least memory that must do."""
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), str(capability), dtype],
        capture_output=True,
        text=True,
        env={**environment, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert set(ran.stdout.split()) == _kernels(capability)
