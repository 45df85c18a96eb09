"""Kill a training at random moments; run by ``test_faults.py`` in a process of its own.

    python killed_fits.py FOLDER COUNT

The run is prepared once. Then a forked process continues it from its checkpoint, writes a
checkpoint every other update, and is killed; and so on. After every kill the checkpoint must be
readable and at most one interval older than the last update that was made. In the end the weights
must be those of a run that nobody killed. Prints, as JSON, what was seen.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import sys
import time

import numpy as np
import onnx

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from cli.small import classifier, samples
from onnxtrain.cli.fitting.fit_options import BatchNormMode, Schedule
from onnxtrain.cli.fitting.loop import Loop
from onnxtrain.cli.fitting.preparing import prepare
from onnxtrain.cli.fitting.progress import Display
from onnxtrain.formats.native import read_native

INTERVAL = 2
MOST_UPDATES = 5
LONGEST_WAIT = 0.01
"""Seconds: about the time of an update and a save."""
PATIENCE = 60.0


def main() -> None:
    folder, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    os.chdir(folder)
    onnx.save(classifier(), "model.onnx")
    np.savez("data.npz", **samples())
    loop = prepare(asked("killed"))[0]
    loop.save()
    waits = random.Random(0)
    positions = []
    for _ in range(count):
        updates = waits.randint(0, MOST_UPDATES)
        last = killed(loop, updates, waits.uniform(0, LONGEST_WAIT))
        position = position_of("killed.ckpt")
        assert last - INTERVAL <= position <= last + 1, (last, position)
        positions.append(position)
    print(json.dumps({
        "positions": positions,
        "same": weights("killed.ckpt") == unbroken(positions[-1]),
        "files": sorted(p.name for p in folder.iterdir()),
    }))  # fmt: skip


def asked(name: str):
    """A run of fit with a random step: Dropout is on."""
    import inspect

    from onnxtrain.cli import fit
    from onnxtrain.cli.fitting.asked import asked as understood

    options = {
        key: parameter.default
        for key, parameter in inspect.signature(fit).parameters.items()
        if key not in ("config", "context", "processes")
    }
    options.update(
        model=pathlib.Path("model.onnx"), data="data.npz", loss="cross_entropy", device="cpu",
        steps=10**9, batch_size=8, checkpoint=pathlib.Path(f"{name}.ckpt"), val_split=0.25,
        checkpoint_every=INTERVAL, log=pathlib.Path(f"{name}.jsonl"), log_every=1,
        schedule=Schedule.constant, batch_norm=BatchNormMode.train,
    )  # fmt: skip
    return understood(options)


def killed(loop: Loop, updates: int, wait: float) -> int:
    """Continue in another process, and kill it a while after some updates.

    Gives the last update that it logged.
    """
    aim = position_of("killed.ckpt") + updates
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            loop.resume()
            os.write(told, b"1")
            loop.run(Display(loop.total, loop.position, 1e9))
        finally:
            os._exit(3)
    os.close(told)
    assert os.read(ready, 1) == b"1"
    os.close(ready)
    until = time.monotonic() + PATIENCE
    while last_logged("killed.jsonl") < aim and time.monotonic() < until:
        time.sleep(0.002)
    time.sleep(wait)
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    return last_logged("killed.jsonl")


def last_logged(path: str) -> int:
    """The last update of a log, whose last line may be cut off."""
    text = pathlib.Path(path).read_text() if pathlib.Path(path).exists() else ""
    whole = text[: text.rfind("\n") + 1].splitlines()
    return int(json.loads(whole[-1])["step"]) if whole else 0


def position_of(path: str) -> int:
    return read_native(path)[1]["extra"]["position"]


def weights(path: str) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in read_native(path)[0].items()}


def unbroken(steps: int) -> dict[str, bytes]:
    """The state after as many updates without a kill."""
    loop = prepare(asked("whole"))[0]
    loop.total = steps
    loop.run(Display(steps, 0, 1e9))
    loop.save()
    return weights("whole.ckpt")


if __name__ == "__main__":
    main()
