"""Groups over MPI, started by mpiexec."""

import functools
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
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
    folder: pathlib.Path, size: int, names: str, timeout: float = 10.0, device: str = "cpu"
) -> subprocess.CompletedProcess[str]:
    command = [str(LAUNCHER), "-n", str(size), sys.executable, mpi_member.__file__, names]
    return subprocess.run(
        [*command, str(timeout), str(folder), device],
        capture_output=True,
        env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        text=True,
        timeout=60,
        check=False,
    )


def results(size: int, name: str, device: str = "cpu") -> list[Any]:
    return [found[name] for found in _world(size, device)]


@functools.cache
def _world(size: int, device: str) -> list[dict[str, Any]]:
    """What the ranks of a world found, one piece of work after the other: starting takes long."""
    names = ["collectives", "adasum", "messages", *(["divided"] if size == 4 else [])]
    with tempfile.TemporaryDirectory() as folder:
        done = launch(pathlib.Path(folder), size, ",".join(names), device=device)
        assert done.returncode == 0, done.stderr
        return [json.loads(pathlib.Path(folder, str(rank)).read_text()) for rank in range(size)]


SIZES = pytest.mark.parametrize(
    ("size", "device"), [(2, "cpu"), (4, "cpu"), pytest.param(2, "cuda", marks=pytest.mark.gpu)]
)


@SIZES
def test_collectives(size: int, device: str) -> None:
    found = results(size, "collectives", device)
    shapes, owners = mpi_member.SHAPES[size], mpi_member.OWNERS[size]
    drawn = [mpi_member.own(rank, *shapes) for rank in range(size)]
    total = [sum(parts[1:], parts[0].double()) for parts in zip(*drawn, strict=True)]
    gathered = [drawn[owner][place] for place, owner in enumerate(owners)]
    for rank, result in enumerate(found):
        near(result["reduce"], total)
        near(result["gather"], gathered)
        pairs = enumerate(zip(owners, total, strict=True))
        near(result["scatter"], [t if owner == rank else drawn[rank][k] for k, (owner, t) in pairs])
        assert result["half"] == [[size * (size + 1) / 2]]


def near(ours: list[Any], true: list[Any]) -> None:
    for found, wanted in zip(ours, true, strict=True):
        np.testing.assert_allclose(found, wanted.double().numpy(), rtol=1e-6, atol=1e-6)


def test_a_mesh() -> None:
    assert results(4, "divided") == [[11.0], [11.0], [1100.0], [1100.0]]


# (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b of the first two, by hand: a.b 1, |a|^2 5, |b|^2 2
SUMS = {2: [1.65, 0.75, 1.8, 0.0], 4: [0.7107, 2.2913, 2.3494, 1.5659]}


@SIZES
def test_adasum(size: int, device: str) -> None:
    for vector, ones, empty in results(size, "adasum", device):
        np.testing.assert_allclose(vector, SUMS[size], atol=5e-5)
        assert ones == [1.0, 1.0, 1.0] and empty == []


@SIZES
def test_messages_with_and_without_shapes(size: int, device: str) -> None:
    for rank, found in enumerate(results(size, "messages", device)):
        sent = torch.arange(6.0).reshape(3, 2) + (rank - 1) % size
        assert found == [[True, sent.tolist(), [0, 1, 2, 3]]] * 2


def test_a_silent_peer_is_a_time_out(tmp_path: pathlib.Path) -> None:
    launch(tmp_path, 2, "silent", timeout=0.5)
    assert json.loads((tmp_path / "0").read_text())["silent"] == [
        "could not receive from rank 1 (tag 0) within 0.5 seconds",
        "could not exchange with rank 1 within 0.5 seconds",
    ]


def test_a_killed_peer_ends_the_run(tmp_path: pathlib.Path) -> None:
    begin = time.monotonic()
    done = launch(tmp_path, 2, "killed", timeout=5.0)
    assert done.returncode != 0 and not list(tmp_path.iterdir())
    assert time.monotonic() - begin < 20.0
