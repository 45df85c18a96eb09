"""``fit --processes N``: the same command in several processes of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from onnxtrain.cli.console import fail
from onnxtrain.cli.ranks import is_started
from onnxtrain.cli.stop import wishes

HOST = "127.0.0.1"
GRACE = 30.0
"""Seconds that processes have to end after another one failed."""
_PAUSE = 0.05


def wanted(count: int | None) -> bool:
    """Whether processes are to be started: not by those that were started already."""
    return count is not None and count > 1 and not is_started()


def start(count: int, words: Sequence[str]) -> int:
    """Run a command line in processes that find each other; gives what to exit with.

    If one fails the others are ended; a signal is handed on to all of them.
    """
    line = [sys.executable, "-m", "onnxtrain.cli", *words]
    shared = _environment(count)
    children = [
        subprocess.Popen(line, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(count)
    ]
    with _handing_on(children):
        codes = _watched(children)
    killed = [(rank, -code) for rank, code in enumerate(codes) if code < 0]
    for rank, number in killed:
        fail(f"process {rank} was ended by {signal.Signals(number).name}")
    if killed:
        return 128 + killed[0][1]
    return next((code for code in codes if code), 0)


def _environment(count: int) -> dict[str, str]:
    """What ``torchrun`` would tell all processes, and their share of the cores."""
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    return {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // count)),
        **os.environ,
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }


@contextlib.contextmanager
def _handing_on(children: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """With: the children get the signals that ask this process to stop, and stop by themselves.

    They may have got them already, from the terminal or the system. A signal that comes a second
    time ends them.
    """
    heard = set[int]()

    def hand_on(number: int, frame: FrameType | None) -> None:
        for child in children:
            if child.poll() is None:
                child.send_signal(getattr(signal, "SIGKILL", number) if number in heard else number)
        heard.add(number)

    before = {number: signal.signal(number, hand_on) for number in wishes()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watched(children: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Wait for all; those that do not end although another one failed are ended."""
    deadline: float | None = None
    while any(child.poll() is None for child in children):
        if deadline is None and any(child.poll() for child in children):
            deadline = time.monotonic() + GRACE
        if deadline is not None and time.monotonic() > deadline:
            for child in children:
                child.kill()
        time.sleep(_PAUSE)
    return [child.wait() for child in children]
