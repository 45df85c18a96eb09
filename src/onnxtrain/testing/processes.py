"""Small worlds of real processes on one machine, for tests of what communicates.

The processes are connected by Gloo over the loopback interface. They come from a server process
that has imported torch once, so a world starts in well under a second.
"""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import os
import pathlib
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from onnxtrain.distributed.layout import Mesh

PRELOADED = ["torch", "torch.distributed", "onnxtrain.kernels.library", "onnxtrain.api"]


class WorldError(AssertionError):
    """A process of a world failed; the message has its rank and traceback."""


def run_world(
    size: int,
    work: Callable[..., Any],
    *args: Any,
    mesh: Mesh | None = None,
    timeout: float = 15.0,
    deadline: float = 60.0,
) -> list[Any]:
    """What ``work(groups, *args)`` returns on each rank.

    Args:
        size: How many processes.
        work: A function of a module, so that other processes can find it.
        args: What it gets beside the groups.
        mesh: Layout of the ranks; None for data parallelism over all of them.
        timeout: Seconds that a transfer may take.
        deadline: Seconds after which the processes are ended.

    Raises:
        WorldError: if some process fails, dies, or does not end in time.
    """
    results = attempt_world(size, work, *args, mesh=mesh, timeout=timeout, deadline=deadline)
    failed = [f"rank {rank}: {text}" for rank, (fine, text) in enumerate(results) if not fine]
    if failed:
        raise WorldError("\n".join(failed))
    return [value for _, value in results]


def attempt_world(
    size: int,
    work: Callable[..., Any],
    *args: Any,
    mesh: Mesh | None = None,
    timeout: float = 15.0,
    deadline: float = 60.0,
) -> list[tuple[bool, Any]]:
    """For each rank (True, result), or (False, why there is none): traceback, death, no end."""
    mesh = mesh or Mesh(size, size)
    context = _context()
    with tempfile.TemporaryDirectory() as folder:
        store = (pathlib.Path(folder) / "store").as_uri()
        pairs = [context.Pipe(duplex=False) for _ in range(size)]
        workers = [
            context.Process(
                target=_member,
                args=(rank, mesh, store, timeout, pairs[rank][1], work, args),
                daemon=True,
            )
            for rank in range(size)
        ]
        with _started(workers):
            for _, writer in pairs:
                writer.close()
            return _collect([reader for reader, _ in pairs], time.monotonic() + deadline)


def _context() -> Any:
    methods = multiprocessing.get_all_start_methods()
    if "forkserver" not in methods:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@contextlib.contextmanager
def _started(workers: list[Any]) -> Iterator[None]:
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.join(1.0)
            if worker.is_alive():
                worker.kill()
                worker.join()


def _collect(readers: list[Connection], end: float) -> list[tuple[bool, Any]]:
    results: list[tuple[bool, Any]] = [(False, "did not end in time")] * len(readers)
    waiting = dict(zip(readers, range(len(readers)), strict=True))
    while waiting and (left := end - time.monotonic()) > 0:
        for reader in wait(list(waiting), left):
            assert isinstance(reader, Connection)
            rank = waiting.pop(reader)
            try:
                results[rank] = pickle.loads(reader.recv_bytes())
            except EOFError:
                results[rank] = (False, "died")
    return results


def _member(
    rank: int,
    mesh: Mesh,
    store: str,
    timeout: float,
    results: Connection,
    work: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    """Body of one process: join the world, work, report."""
    import torch
    import torch.distributed as dist

    from onnxtrain.distributed.torch_groups import TorchGroups

    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=max(timeout, 30.0))
    try:
        dist.init_process_group(
            "gloo", init_method=store, rank=rank, world_size=mesh.world_size, timeout=limit
        )
        with TorchGroups(mesh, timeout=timeout) as groups:
            _send(results, True, work(groups, *args))
    except BaseException:
        _send(results, False, traceback.format_exc())
    finally:
        results.close()
        # no orderly good-bye: a peer may be gone, and waiting for it would take its time-out
        os._exit(0)


def _send(results: Connection, fine: bool, value: Any) -> None:
    """Report with all that it holds; torch's way to send tensors needs the sender to live on."""
    results.send_bytes(pickle.dumps((fine, value)))
