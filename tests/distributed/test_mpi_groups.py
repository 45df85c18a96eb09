"""Groups over MPI, started by mpiexec."""

import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
import torch

from distributed import mpi_member

LAUNCHER = shutil.which("mpiexec", path=str(pathlib.Path(sys.executable).parent)) or shutil.which(
    "mpiexec"
)
pytestmark = [
    pytest.mark.multi,
    pytest.mark.skipif(
        importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed (extra 'mpi')"
    ),
    pytest.mark.skipif(LAUNCHER is None, reason="there is no mpiexec"),
]


def launch(
    folder: pathlib.Path, size: int, name: str, timeout: float = 10.0
) -> subprocess.CompletedProcess[str]:
    command = [str(LAUNCHER), "-n", str(size), sys.executable, mpi_member.__file__, name]
    return subprocess.run(
        [*command, str(timeout), str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def results(folder: pathlib.Path, size: int, name: str) -> list[Any]:
    done = launch(folder, size, name)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / str(rank)).read_text()) for rank in range(size)]


def test_collectives(tmp_path: pathlib.Path) -> None:
    shapes = [(5, 10), (14,), (2, 8)]
    first, second = results(tmp_path, 2, "collectives")
    a, b = mpi_member.own(0, *shapes), mpi_member.own(1, *shapes)
    total = [x + y for x, y in zip(a, b, strict=True)]
    assert first["reduce"] == second["reduce"] == mpi_member.floats(total)
    assert first["gather"] == second["gather"] == mpi_member.floats([a[0], a[1], b[2]])
    assert first["scatter"] == mpi_member.floats([total[0], total[1], a[2]])
    assert second["scatter"] == mpi_member.floats([b[0], b[1], total[2]])
    assert first["half"] == second["half"] == [3.0] and first["horizontal"] == [0]


def test_a_mesh(tmp_path: pathlib.Path) -> None:
    assert results(tmp_path, 4, "divided") == [[11.0], [11.0], [1100.0], [1100.0]]


def test_adasum(tmp_path: pathlib.Path) -> None:
    for vector, ones, empty in results(tmp_path, 4, "adasum"):
        np.testing.assert_allclose(vector, [0.7107, 2.2913, 2.3494, 1.5659], atol=5e-5)
        assert ones == [1.0, 1.0, 1.0] and empty == []


def test_messages_with_and_without_shapes(tmp_path: pathlib.Path) -> None:
    received = [True, torch.arange(6.0).reshape(3, 2).tolist(), [0, 1, 2, 3]]
    assert results(tmp_path, 2, "messages") == [[], [received, received]]


def test_a_silent_peer_is_a_time_out(tmp_path: pathlib.Path) -> None:
    launch(tmp_path, 2, "silent", timeout=0.5)
    assert json.loads((tmp_path / "0").read_text()) == [
        "could not receive from rank 1 (tag 0) within 0.5 seconds",
        "could not exchange with rank 1 within 0.5 seconds",
    ]


def test_a_killed_peer_ends_the_run(tmp_path: pathlib.Path) -> None:
    begin = time.monotonic()
    done = launch(tmp_path, 2, "killed", timeout=5.0)
    assert done.returncode != 0 and not list(tmp_path.iterdir())
    assert time.monotonic() - begin < 20.0
