"""Stop a save at every line it executes and look at what is left; run by ``test_file_crashes.py``.

    python killed_saves.py SCENARIO FOLDER [--interrupt | --twice]

For each line that the save executes in ``onnxtrain.files`` and ``onnxtrain.formats``, a forked
process saves and kills itself there (``--interrupt``: is interrupted there, as by Ctrl-C). What a
reader then finds must be the old content or the new, with nothing left over. With ``--twice`` the
process that repairs a save that was cut off is killed at each of its lines as well. Prints, as
JSON, how often the old and the new content were found.

Only checkpoints need NumPy, which is imported for them alone: a small process is forked faster.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import sys
from collections.abc import Callable, Hashable, Iterator
from types import FrameType

import onnxtrain.files
import onnxtrain.formats
from onnxtrain.files.atomic import atomic_write, atomic_write_pair, finish_pending, open_pair

SOURCES = tuple(os.path.dirname(p.__file__) for p in (onnxtrain.files, onnxtrain.formats))
STOPPED = 9
Save = Callable[[pathlib.Path], object]


def main() -> None:
    scenario, path = sys.argv[1], pathlib.Path(sys.argv[2]) / "ckpt"
    old, new = SCENARIOS[scenario]
    load = load_checkpoint if scenario == "checkpoint" else load_pair
    names = {}
    for name, save in (("old", old), ("new", new)):
        prepare(path, old)
        save(path)
        names[examine(path, load)] = name
    assert len(names) == 2
    found = {"old": 0, "new": 0}
    repaired = set()
    for _ in stops(lambda: prepare(path, old), lambda: new(path)):
        if "--twice" not in sys.argv:
            found[names[examine(path, load)]] += 1
        elif (state := state_of(path)) not in repaired:
            repaired.add(state)
            for content in contents_after_killed_repairs(path, load):
                found[names[content]] += 1
    assert names[examine(path, load)] == "new"
    print(json.dumps(found))


def stops(before: Callable[[], object], action: Callable[[], object]) -> Iterator[None]:
    """Run an action again and again, stopped at its first line, its second, and so on."""
    step = 1
    while True:
        before()
        if not was_stopped(action, step):
            return
        yield
        step += 1


def was_stopped(action: Callable[[], object], step: int) -> bool:
    """Run in a process that is stopped at a line; False if it came to its end before."""
    pid = os.fork()
    if pid == 0:
        sys.settrace(stopper(step))
        try:
            action()
        except KeyboardInterrupt:
            os._exit(STOPPED)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, STOPPED, -signal.SIGKILL), status
    return status != 0


def stopper(step: int) -> Callable[[FrameType, str, object], object]:
    """A trace function that stops the process at the given line of the package."""
    remaining = step

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal remaining
        if not frame.f_code.co_filename.startswith(SOURCES):
            return None
        remaining -= event == "line"
        if remaining == 0 and event == "line":
            if "--interrupt" in sys.argv:
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def prepare(path: pathlib.Path, old: Save) -> None:
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.mkdir()
    old(path)


def contents_after_killed_repairs(
    path: pathlib.Path, load: Callable[[pathlib.Path], Hashable]
) -> Iterator[Hashable]:
    """What a reader finds after the repair of a save was killed too."""
    copy = path.parent.with_name("copy")
    shutil.copytree(path.parent, copy)

    def restore() -> None:
        shutil.rmtree(path.parent)
        shutil.copytree(copy, path.parent)

    for _ in stops(restore, lambda: finish_pending(path)):
        yield examine(path, load)
    shutil.rmtree(copy)


def state_of(path: pathlib.Path) -> Hashable:
    """Names and contents of all files, apart from what is random in the names."""
    files = [(re.sub("[0-9a-f]{16}", "", p.name), p.read_bytes()) for p in path.parent.iterdir()]
    return tuple(sorted(files))


def examine(path: pathlib.Path, load: Callable[[pathlib.Path], Hashable]) -> Hashable:
    """What a reader finds; only the files of one save may then be left."""
    content = load(path)
    left = sorted(p.name for p in path.parent.iterdir())
    assert left in (["ckpt"], ["ckpt", "ckpt.data"], []), left
    return content


def load_pair(path: pathlib.Path) -> Hashable:
    try:
        with open_pair(path) as (main, data):
            return main.read(), data.read() if data else None
    except FileNotFoundError:
        return None


def load_checkpoint(path: pathlib.Path) -> Hashable:
    from onnxtrain.formats.odtc import read_checkpoint

    parameters = read_checkpoint(path).trainable
    return tuple((name, array.tobytes()) for name, array in parameters.items())


def save_checkpoint(path: pathlib.Path, value: float) -> None:
    import numpy as np

    from onnxtrain.formats.odtc import CheckpointData, write_checkpoint

    data = CheckpointData(trainable={"w": np.full(32, value), "b": np.full(2, value)})
    write_checkpoint(path, data, external_threshold=0)


SCENARIOS: dict[str, tuple[Save, Save]] = {
    "file": (lambda p: atomic_write(p, b"old"), lambda p: atomic_write(p, b"new")),
    "pair": (
        lambda p: atomic_write_pair(p, b"old", b"old data"),
        lambda p: atomic_write_pair(p, b"new", b"new data"),
    ),
    "pair to file": (
        lambda p: atomic_write_pair(p, b"old", b"old data"),
        lambda p: atomic_write_pair(p, b"new", None),
    ),
    "file to pair": (
        lambda p: atomic_write(p, b"old"),
        lambda p: atomic_write_pair(p, b"new", b"new data"),
    ),
    "nothing to pair": (lambda p: None, lambda p: atomic_write_pair(p, b"new", b"new data")),
    "checkpoint": (lambda p: save_checkpoint(p, 1.0), lambda p: save_checkpoint(p, 2.0)),
}


if __name__ == "__main__":
    main()
