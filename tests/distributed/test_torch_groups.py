"""Groups over torch.distributed: set-up, failures of peers, and the variables of torchrun."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distributed.silence import ended, silent_until
from onnxtrain.distributed.groups import ALONE, Groups, present
from onnxtrain.distributed.layout import LAUNCHED, Mesh
from onnxtrain.distributed.torch_groups import TorchGroups, connect
from onnxtrain.errors import OptionError
from onnxtrain.testing.processes import WorldError, attempt_world, run_world


def test_a_process_alone_has_groups_of_one() -> None:
    x = torch.arange(3.0)
    for kind in range(6):
        assert ALONE.ranks(kind) == (0,)
        ALONE.all_reduce(x, kind)
        ALONE.all_gather(x, kind)
        ALONE.reduce_scatter(x, kind)
    ALONE.all_reduce_block(x, 1)
    assert x.tolist() == [0, 1, 2] and present(None) is ALONE
    with ALONE as groups:
        assert groups is ALONE


def test_groups_need_torch_distributed() -> None:
    with pytest.raises(OptionError, match=r"not initialised; call connect\(\)"):
        TorchGroups(Mesh(2, 2))


def test_processes_that_nobody_started_cannot_be_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OptionError, match="RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT is not set"):
        connect()


@pytest.mark.parametrize("sizes", [{"horizontal": 0}, {"horizontal": 2}, {"pipeline": 0}], ids=str)
def test_sizes_that_do_not_fit_leave_nothing_connected(
    sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        values = ("0", "1", "127.0.0.1", str(free.getsockname()[1]))
    for name, value in zip(LAUNCHED, values, strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    names = {"horizontal": "horizontal_parallel_size", "pipeline": "pipeline_stage_size"}
    with pytest.raises(OptionError, match="parallel_size"):
        connect(**{names[key]: size for key, size in sizes.items()})
    assert not dist.is_initialized()


def wrong_mesh(groups: Groups) -> None:
    TorchGroups(Mesh(4, 4))


@pytest.mark.multi
def test_the_mesh_has_the_size_of_the_world() -> None:
    with pytest.raises(WorldError, match=r"the mesh has 4 ranks, torch.distributed 2"):
        run_world(2, wrong_mesh)


@pytest.mark.parametrize(("rank", "timeout"), [(2, 1.0), (-1, 1.0), (0, 0.0)])
def test_impossible_places_are_refused(rank: int, timeout: float) -> None:
    class Some(type(ALONE)):  # type: ignore[misc]
        def __init__(self) -> None:
            Groups.__init__(self, Mesh(2, 2), rank, timeout)

    with pytest.raises(OptionError, match=r"not in a world of 2|is not positive"):
        Some()


def shares_of_four(groups: Groups) -> tuple[list[float], list[float]]:
    share = 3
    flat = torch.full((12,), -1.0)
    own = slice(share * groups.rank, share * (groups.rank + 1))
    flat[own] = float(groups.rank)
    groups.all_gather(flat, 0)
    summed = torch.arange(12.0) * (groups.rank + 1)
    groups.reduce_scatter(summed, 0)
    return flat.tolist(), summed[own].tolist()


@pytest.mark.multi
def test_shares_are_gathered_and_summed() -> None:
    for rank, (gathered, summed) in enumerate(run_world(4, shares_of_four)):
        assert gathered == [float(r) for r in range(4) for _ in range(3)]
        assert summed == [10.0 * (3 * rank + n) for n in range(3)]


def halves(groups: Groups) -> list[float]:
    """1 + 3·2^-11 is 1 + 2^-9 if it is rounded once, and less if each sum is."""
    x = torch.tensor([1.0 if groups.rank == 0 else 2.0**-11], dtype=torch.float16)
    groups.all_reduce(x, 0)
    return x.tolist()


@pytest.mark.multi
def test_halves_are_rounded_once() -> None:
    assert run_world(4, halves) == [[1 + 2.0**-9]] * 4


def exchanged(groups: Groups) -> list[list[float]]:
    heard = []
    for size in (5, 0):
        mine = torch.full((size + groups.rank,), float(groups.rank))
        theirs = torch.empty(size + 1 - groups.rank)
        groups.exchange(mine, theirs, 1 - groups.rank)
        heard.append(theirs.tolist())
    return heard


@pytest.mark.multi
def test_an_exchange_may_be_uneven_or_empty() -> None:
    assert run_world(2, exchanged) == [[[1.0] * 6, [1.0]], [[0.0] * 5, []]]


def silent(groups: Groups, what: str, over: pathlib.Path) -> tuple[str, float]:
    if groups.rank == 1:
        silent_until(over)
        return "", 0.0
    with ended(over):
        return _failure(groups, what)


def killed(groups: Groups, what: str) -> tuple[str, float]:
    if groups.rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    return _failure(groups, what)


def _failure(groups: Groups, what: str) -> tuple[str, float]:
    flat = torch.ones(64)
    transfers: dict[str, Any] = {
        "add up over ranks [0, 1]": lambda: groups.all_reduce(flat, 0),
        "gather from ranks [0, 1]": lambda: groups.all_gather(flat, 0),
        "exchange with rank 1": lambda: groups.exchange(flat, torch.empty(64), 1),
    }
    begin = time.monotonic()
    try:
        transfers[what]()
    except (ConnectionError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begin
    raise AssertionError


TRANSFERS = ["add up over ranks [0, 1]", "gather from ranks [0, 1]", "exchange with rank 1"]


@pytest.mark.multi
@pytest.mark.parametrize("what", TRANSFERS)
def test_a_silent_peer_is_a_time_out(what: str, tmp_path: pathlib.Path) -> None:
    (text, seconds), _ = run_world(2, silent, what, tmp_path / "over", timeout=1.0)
    assert text.startswith(f"TimeoutError: could not {what} within 1 seconds")
    assert 0.9 < seconds < 4.0


@pytest.mark.multi
@pytest.mark.parametrize("what", TRANSFERS)
def test_a_killed_peer_is_an_error(what: str) -> None:
    survivor, victim = attempt_world(2, killed, what, timeout=5.0)
    assert victim == (False, "died") and survivor[0], survivor[1]
    text, seconds = survivor[1]
    assert f"Error: could not {what}" in text and seconds < 8.0


SCRIPT = """
import torch, torch.distributed as dist
from onnxtrain.distributed.torch_groups import connect
with connect(horizontal_parallel_size=2, timeout=20) as groups:
    x = torch.tensor([float(groups.rank)])
    groups.all_reduce(x, 0)
    assert x.item() == 1 and groups.ranks(4) == (0, 1) and groups.mesh.data_parallel_size == 1
    assert groups.mesh.node_size == 1 and groups.timeout == 20
assert not dist.is_initialized()
"""


@pytest.mark.multi
def test_connect_reads_the_variables_of_torchrun() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    started = [
        subprocess.Popen([sys.executable, "-c", SCRIPT], env={**shared, "RANK": str(rank)})
        for rank in range(2)
    ]
    assert [process.wait(timeout=60) for process in started] == [0, 0]


def closed(groups: Groups) -> bool:
    other = connect(timeout=10)
    other.close()
    other.close()
    return dist.is_initialized() and other._world is None


@pytest.mark.multi
def test_closing_leaves_torch_distributed_alone() -> None:
    assert run_world(2, closed) == [True, True]
