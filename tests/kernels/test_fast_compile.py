"""Triton kernels as machine code for GPUs that are not there: more than an interpreter sees."""

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")
from onnxtrain.kernels import fast
from onnxtrain.kernels.fast.cluster import InClusters
from onnxtrain.kernels.fast.compiled import Compiled

SCRIPT = Path(__file__).with_name("compile_for.py")


def _kernels() -> set[str]:
    """All of them by module and name; clusters run the functions of others."""
    return {
        f"{module}.{name}"
        for _, module, _ in pkgutil.iter_modules(fast.__path__)
        for name, found in vars(fast.load(module)).items()
        if isinstance(found, Compiled) and not isinstance(found.function, InClusters)
    }


@pytest.mark.parametrize("capability", [86, 90])
def test_every_kernel_is_compiled(capability: int) -> None:
    """Capability 8.6 has the oldest instructions and the least memory that must do."""
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), str(capability), "bfloat16"],
        capture_output=True,
        text=True,
        env={**environment, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert set(ran.stdout.split()) == _kernels()
