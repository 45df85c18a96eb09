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
from typing import TYPE_CHECKING

from onnxtrain.cli.console import fail
from onnxtrain.cli.device import checked_device
from onnxtrain.cli.fitting import paths
from onnxtrain.cli.fitting.ranks import is_started
from onnxtrain.cli.fitting.stop import wishes
from onnxtrain.errors import OptionError

if TYPE_CHECKING:
    from onnxtrain.cli.fitting.asked import Run

HOST = "127.0.0.1"
GRACE = 30.0
"""Seconds that processes have to end after another one failed."""
MOST_ON_A_CORE = 4
"""More processes than cores only wait for each other; some are allowed, to try things out."""
_PAUSE = 0.05


def wanted(count: int | None) -> bool:
    """Whether processes are to be started: not by those that were started already."""
    return count is not None and count > 1 and not is_started()


def check(asked: Run, count: int) -> None:
    """Refuse what the processes would refuse, as far as the model's inputs tell, before they start.

    Raises:
        OnnxTrainError: if files are wrong, a batch has too few samples for all processes, or the
            machine has no room for them.
    """
    from onnxtrain.cli.fitting.feeding import batch_size
    from onnxtrain.graph.loading.load import load_model

    paths.check(asked)
    check_room(asked.device, count)
    graph = load_model(asked.model).graph
    fed = [v for v in graph.inputs if v.name not in graph.initializers and v.uses()]
    firsts = {v.shape[0] if isinstance(v.shape[0], int) else None for v in fed if v.shape}
    # inputs that differ may be some that the loss does not need: the processes will see
    size, fixed = batch_size(firsts if len(firsts) == 1 else (), asked.batch_size)
    check_share(size * asked.accumulate, size if fixed else 1, count)


def check_room(device: str | None, count: int) -> None:
    """Refuse more processes than this machine has GPUs, or many more than it has cores.

    Raises:
        OnnxTrainError: if there are, or the device is not there.
    """
    if device != "cpu" and checked_device(device).startswith("cuda"):
        import torch

        gpus = torch.cuda.device_count()
        if count > gpus:
            raise OptionError(
                f"{count} processes need a GPU each, this machine has {gpus}\n"
                f"  give  --processes {gpus}, or  --device cpu"
            )
    elif count > MOST_ON_A_CORE * cores():
        raise OptionError(
            f"{count} processes are too many for this machine, which has {cores()} cores\n"
            f"  give  --processes {max(cores(), 2)}, say, or start them on several machines by "
            "torchrun"
        )


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_share(samples: int, unit: int, count: int) -> None:
    """Refuse a batch that has nothing for one of the processes.

    Args:
        samples: Samples of a batch.
        unit: Samples that stay together.
        count: How many processes there are.

    Raises:
        OptionError: if there are more of them than units.
    """
    if samples // unit < count:
        cure = f"--accumulate {count}" if unit > 1 else f"--batch-size {count}"
        raise OptionError(
            f"a batch of {samples} samples cannot be shared by {count} processes\n"
            f"  give  {cure}  or more, or start fewer processes"
        )


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
