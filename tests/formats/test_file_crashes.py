"""Whenever a process dies or a reader comes along, there is the old content or the new one."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import BinaryIO

import pytest

from onnxtrain.errors import CheckpointError, SaveError
from onnxtrain.files import atomic, staging
from onnxtrain.files.atomic import atomic_write, atomic_write_pair, finish_pending, open_pair

posix = pytest.mark.skipif(os.name != "posix", reason="needs fork, file modes or flock")


def content(path: pathlib.Path) -> tuple[bytes, bytes | None]:
    with open_pair(path) as (main, data):
        return main.read(), data.read() if data else None


def names(folder: pathlib.Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def run(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


SCENARIOS = ["file", "pair", "pair to file", "file to pair", "nothing to pair", "checkpoint"]


@posix
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param([], id="kill"),
        pytest.param(["--interrupt"], id="ctrl-c"),
        pytest.param(["--twice"], id="twice", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_stopped_save_leaves_old_or_new(tmp_path, scenario, mode):
    script = pathlib.Path(__file__).with_name("killed_saves.py")
    command = [sys.executable, str(script), scenario, str(tmp_path / "run"), *mode]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["old"] > 50 and found["new"] > 5


@posix
@pytest.mark.parametrize("data", [True, False], ids=["pair to pair", "pair to file and back"])
def test_readers_never_see_a_mixture(tmp_path, data):
    """Read all the time while another process saves pairs of equal content."""
    path = tmp_path / "ckpt"
    code = """
        import sys
        from onnxtrain.files.atomic import atomic_write_pair
        always = sys.argv[3] == "True"
        for i in range(int(sys.argv[2])):
            content = b"%d" % i
            atomic_write_pair(sys.argv[1], content, content if always or i % 2 else None)
    """
    atomic_write_pair(path, b"0", b"0" if data else None)
    command = [sys.executable, "-c", textwrap.dedent(code), str(path), "150", str(data)]
    seen = set()
    with subprocess.Popen(command) as saver:
        while saver.poll() is None:
            main, beside = content(path)
            assert beside == (main if data or int(main) % 2 else None)
            seen.add(main)
    assert saver.returncode == 0
    assert len(seen) > 10
    assert names(tmp_path) == ["ckpt", "ckpt.data"]


DYING_SAVE = """
    import os, sys
    from onnxtrain.files.atomic import atomic_write, atomic_write_pair
    def dying(handle):
        handle.write(b"half")
        handle.flush()
        os._exit(1)
    {call}
"""


@posix
@pytest.mark.parametrize(
    "call",
    ["atomic_write(sys.argv[1], dying)", "atomic_write_pair(sys.argv[1], dying, b'data')"],
)
@pytest.mark.parametrize("repair", [finish_pending, lambda path: atomic_write(path, b"old")])
def test_leftovers_are_removed(tmp_path, call, repair):
    path = tmp_path / "ckpt"
    path.write_bytes(b"old")
    run(DYING_SAVE.format(call=call), path)
    assert len(names(tmp_path)) > 1
    repair(path)
    assert names(tmp_path) == ["ckpt"]
    assert path.read_bytes() == b"old"


@posix
def test_leftovers_of_other_files_are_left_alone(tmp_path):
    run(DYING_SAVE.format(call="atomic_write(sys.argv[1], dying)"), tmp_path / "ckpt.b")
    leftovers = names(tmp_path)
    assert len(leftovers) == 1
    for name in ("ckpt", "b", ".ckpt"):
        finish_pending(tmp_path / name)
    assert names(tmp_path) == leftovers


@posix
def test_a_save_under_way_is_left_alone(tmp_path):
    path = tmp_path / "ckpt"
    atomic_write(path, b"old")

    def slow(handle: BinaryIO) -> None:
        handle.write(b"new")
        finish_pending(path)
        assert path.read_bytes() == b"old"

    atomic_write(path, slow)
    assert path.read_bytes() == b"new"
    atomic_write_pair(path, slow_pair(path), b"data")
    assert content(path) == (b"newer", b"data")


def slow_pair(path: pathlib.Path) -> Callable[[BinaryIO], None]:
    """A writer of a main file during which a reader comes along."""

    def write(handle: BinaryIO) -> None:
        handle.write(b"newer")
        assert content(path) == (b"new", None)

    return write


@posix
def test_a_committed_save_does_not_come_back(tmp_path):
    """A pair that was committed before a crash must not replace what is saved after it."""
    path = tmp_path / "ckpt"
    atomic_write_pair(path, b"old", b"old data")
    code = """
        import os, sys
        from onnxtrain.files import atomic
        atomic._publish = lambda *args: os._exit(1)
        atomic.atomic_write_pair(sys.argv[1], b"committed", b"committed data")
    """
    run(code, path)
    assert len(names(tmp_path)) == 4
    atomic_write(path, b"newest")
    finish_pending(path)
    assert content(path)[0] == b"newest"


@posix
def test_a_committed_save_of_a_living_process_is_waited_for(tmp_path):
    path = tmp_path / "ckpt"
    atomic_write_pair(path, b"old", b"old data")
    marker = tmp_path / f".ckpt.{'0' * 16}.without-data"
    marker.write_bytes(b"new")
    with open(marker, "rb") as saver:
        assert staging.lock(saver, wait=False)
        reader = threading.Thread(target=finish_pending, args=[path])
        reader.start()
        reader.join(timeout=0.3)
        assert reader.is_alive() and path.read_bytes() == b"old"
    reader.join()
    assert content(path) == (b"new", None)


def test_data_is_kept_for_a_commit_that_comes_late(tmp_path, monkeypatch):
    """A save may be committed, and its process die, just after a reader has looked for markers."""
    path = tmp_path / "ckpt"
    atomic_write_pair(path, b"old", b"old data")
    (tmp_path / f".ckpt.{'0' * 16}.with-data").write_bytes(b"new")
    (tmp_path / f".ckpt.{'0' * 16}.data").write_bytes(b"new data")
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "_markers", lambda final: [])
        finish_pending(path)
    assert content(path) == (b"new", b"new data")


@posix
def test_a_save_that_cannot_be_completed(tmp_path, monkeypatch):
    path = tmp_path / "ckpt"
    atomic_write_pair(path, b"old", b"old data")
    (tmp_path / f".ckpt.{'0' * 16}.with-data").write_bytes(b"new")

    def refuse(*args: object) -> None:
        raise PermissionError(errno.EACCES, "not yours")

    monkeypatch.setattr(os, "replace", refuse)
    monkeypatch.setattr("onnxtrain.files.atomic._ATTEMPTS", 2)
    with pytest.raises(CheckpointError, match="may not be completed"):
        content(path)
    with pytest.raises(SaveError, match="not yours"):
        atomic_write(path, b"newer")
