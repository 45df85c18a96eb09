"""Files are written entirely or not at all, whatever happens meanwhile."""

from __future__ import annotations

import errno
import os
import pathlib
import stat
import subprocess
import sys
import textwrap
import time
from typing import BinaryIO

import pytest

from onnxtrain.errors import SaveError
from onnxtrain.files import atomic, staging
from onnxtrain.files.atomic import atomic_write, atomic_write_pair, data_path, open_pair
from onnxtrain.formats.names import ArtifactPaths

posix = pytest.mark.skipif(os.name != "posix", reason="needs fork, file modes or flock")
not_root = pytest.mark.skipif(
    os.name == "posix" and os.geteuid() == 0, reason="root may write to read-only files"
)


def content(path: pathlib.Path) -> tuple[bytes, bytes | None]:
    with open_pair(path) as (main, data):
        return main.read(), data.read() if data else None


def names(folder: pathlib.Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def run(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_names_have_the_prefix():
    paths = ArtifactPaths(pathlib.Path("out"), "net_")
    assert paths.training_model == pathlib.Path("out/net_training_model.onnx")
    assert paths.eval_model == pathlib.Path("out/net_eval_model.onnx")
    assert paths.optimizer_model == pathlib.Path("out/net_optimizer_model.onnx")
    assert paths.checkpoint == pathlib.Path("out/net_checkpoint")
    assert paths.nominal_checkpoint == pathlib.Path("out/net_nominal_checkpoint")


@pytest.mark.parametrize("what", [b"hello", lambda handle: handle.write(b"hello")])
def test_writes_and_replaces(tmp_path, what):
    path = tmp_path / "file"
    atomic_write(path, b"a longer content than the new one")
    atomic_write(str(path), what)
    assert path.read_bytes() == b"hello"
    assert names(tmp_path) == ["file"]


def test_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    atomic_write("file", b"x")
    atomic_write_pair("pair", b"m", b"d")
    assert names(tmp_path) == ["file", "pair", "pair.data"]


def test_longest_name(tmp_path):
    path = tmp_path / ("n" * 250)
    atomic_write_pair(path, b"m", b"d")
    atomic_write_pair(path, b"new", b"data")
    assert content(path) == (b"new", b"data")
    assert len(names(tmp_path)) == 2


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "store").mkdir()
    real, link = tmp_path / "store" / "real", tmp_path / "link"
    real.write_bytes(b"old")
    link.symlink_to(real)
    atomic_write(link, b"new")
    assert link.is_symlink() and real.read_bytes() == b"new"


def test_a_pair_lies_where_the_link_points_to(tmp_path):
    (tmp_path / "store").mkdir()
    real, link = tmp_path / "store" / "real", tmp_path / "link"
    link.symlink_to(real)
    atomic_write_pair(link, b"m", b"d")
    assert names(tmp_path / "store") == ["real", "real.data"]
    assert content(link) == content(real) == (b"m", b"d")


def test_data_on_another_disk_stays_there(tmp_path):
    (tmp_path / "disk").mkdir()
    path = tmp_path / "ckpt"
    (tmp_path / "ckpt.data").symlink_to(tmp_path / "disk" / "big")
    atomic_write_pair(path, b"m", b"d")
    assert (tmp_path / "disk" / "big").read_bytes() == b"d"
    assert names(tmp_path / "disk") == ["big"]
    assert content(path) == (b"m", b"d")


def test_links_to_both_files_of_a_pair_are_read(tmp_path):
    (tmp_path / "blobs").mkdir()
    for link, blob in (("ckpt", "8f1c"), ("ckpt.data", "03aa")):
        (tmp_path / "blobs" / blob).write_bytes(blob.encode())
        (tmp_path / link).symlink_to(tmp_path / "blobs" / blob)
    assert content(tmp_path / "ckpt") == (b"8f1c", b"03aa")


@posix
def test_permissions(tmp_path):
    path = tmp_path / "file"
    old_mask = os.umask(0o022)
    try:
        atomic_write(path, b"x")
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        path.chmod(0o640)
        atomic_write(path, b"y")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o600)
        atomic_write_pair(path, b"z", b"new data is as private as the main file")
        assert stat.S_IMODE((tmp_path / "file.data").stat().st_mode) == 0o600
    finally:
        os.umask(old_mask)


@not_root
def test_a_read_only_file_is_not_replaced(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o444)
    with pytest.raises(SaveError, match="read-only"):
        atomic_write(path, b"new")
    assert path.read_bytes() == b"old"


def test_no_such_folder(tmp_path):
    path = tmp_path / "missing" / "file"
    with pytest.raises(SaveError) as caught:
        atomic_write(path, b"x")
    assert str(path) in str(caught.value)
    assert caught.value.errno == errno.ENOENT


def test_a_folder_is_in_the_way(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(SaveError):
        atomic_write(tmp_path / "file", b"x")
    assert names(tmp_path) == ["file"]


@posix
@pytest.mark.parametrize("kind", ["file", "main", "data"])
def test_a_pipe_is_not_replaced(tmp_path, kind):
    path = tmp_path / "file"
    pipe = path if kind != "data" else tmp_path / "file.data"
    os.mkfifo(pipe)
    with pytest.raises(SaveError, match="it is a device or a pipe, not a file"):
        if kind == "file":
            atomic_write(path, b"x")
        else:
            atomic_write_pair(path, b"x", b"y")
    assert stat.S_ISFIFO(pipe.stat().st_mode) and names(tmp_path) == [pipe.name]


def disk_full(handle: BinaryIO) -> None:
    handle.write(b"the first part")
    handle.flush()
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(SaveError, match="No space left on device") as caught:
        atomic_write(path, disk_full)
    assert str(path) in str(caught.value)
    assert caught.value.errno == errno.ENOSPC
    assert isinstance(caught.value.__cause__, OSError)
    assert names(tmp_path) == ["file"] and path.read_bytes() == b"old"


@pytest.mark.parametrize("main, data", [(disk_full, b"d"), (b"m", disk_full), (disk_full, None)])
def test_full_disk_keeps_the_old_pair(tmp_path, main, data):
    path = tmp_path / "ckpt"
    atomic_write_pair(path, b"old", b"old data")
    with pytest.raises(SaveError, match="No space left"):
        atomic_write_pair(path, main, data)
    assert names(tmp_path) == ["ckpt", "ckpt.data"]
    assert content(path) == (b"old", b"old data")


@posix
def test_limit_on_the_size_of_files(tmp_path):
    path = tmp_path / "ckpt"
    atomic_write_pair(path, b"old", b"old data")
    code = """
        import resource, sys
        from onnxtrain.files.atomic import atomic_write, atomic_write_pair
        from onnxtrain.errors import SaveError
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        for save in (atomic_write, lambda p, c: atomic_write_pair(p, b"new", c)):
            try:
                save(sys.argv[1], bytes(1_000_000))
            except SaveError as error:
                print(error)
    """
    result = run(code, path)
    assert result.stdout.count("File too large") == 2, result.stderr
    assert names(tmp_path) == ["ckpt", "ckpt.data"]
    assert content(path) == (b"old", b"old data")


def test_an_error_of_the_writer_is_passed_on(tmp_path):
    def broken(handle: BinaryIO) -> None:
        handle.write(b"part")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        atomic_write(tmp_path / "file", broken)
    with pytest.raises(ZeroDivisionError):
        atomic_write_pair(tmp_path / "file", b"m", broken)
    assert names(tmp_path) == []


@pytest.mark.parametrize("data", [b"new data", None])
def test_content_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch, data):
    path, written = tmp_path / "ckpt", set()
    sync, replace = os.fsync, os.replace

    def syncing(handle: int) -> None:
        written.add(os.fstat(handle).st_ino)
        sync(handle)

    def replacing(old: str, new: str) -> None:
        assert os.stat(old).st_ino in written
        replace(old, new)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "replace", replacing)
    atomic_write(path, b"old")
    atomic_write_pair(path, b"new", data)
    assert content(path) == (b"new", data)
    assert tmp_path.stat().st_ino in written


@pytest.mark.parametrize("function", ["replace", "fsync", "unlink"])
@pytest.mark.parametrize("data", [b"new data", None])
def test_a_refused_system_call_mixes_nothing(tmp_path, monkeypatch, function, data):
    """The k-th call fails, for every k: the old pair is left, or the new one is complete."""
    path = tmp_path / "ckpt"
    original = getattr(os, function)
    for k in range(1, 10):
        atomic_write_pair(path, b"old", b"old data")
        calls = 0

        def failing(*args: object, k: int = k) -> object:
            nonlocal calls
            calls += 1
            if calls == k:
                raise OSError(errno.EIO, "broken")
            return original(*args)

        monkeypatch.setattr(os, function, failing)
        try:
            atomic_write_pair(path, b"new", data)
            expected = [(b"new", data)]
        except SaveError:
            expected = [(b"old", b"old data"), (b"new", data)]
        monkeypatch.undo()
        assert content(path) in expected
        assert names(tmp_path) in (["ckpt"], ["ckpt", "ckpt.data"])
        if calls < k:
            return
    pytest.fail("the save does not end")


def test_a_pair_and_then_none(tmp_path):
    path = tmp_path / "ckpt"
    atomic_write_pair(path, b"m", b"d")
    assert content(path) == (b"m", b"d")
    atomic_write_pair(path, b"m2", lambda handle: handle.write(b"d2"))
    assert content(path) == (b"m2", b"d2")
    atomic_write_pair(path, b"m3", None)
    assert content(path) == (b"m3", None)
    assert names(tmp_path) == ["ckpt"]


@pytest.fixture
def without_locks(monkeypatch):
    """As on Windows, and on file systems without locks."""
    for module in (atomic, staging):
        monkeypatch.setattr(module, "lock", lambda handle, wait: False)


@pytest.mark.usefixtures("without_locks")
def test_without_locks_only_old_leftovers_are_removed(tmp_path):
    path = tmp_path / "ckpt"
    atomic_write_pair(path, b"m", b"d")
    young, old = (tmp_path / f".ckpt.{digit * 16}.tmp" for digit in "01")
    old_data, foreign = tmp_path / f".ckpt.{'2' * 16}.data", tmp_path / f".ckpt2.{'3' * 16}.tmp"
    for leftover in (young, old, old_data, foreign):
        leftover.write_bytes(b"half")
    for leftover in (old, old_data, foreign):
        os.utime(leftover, (time.time() - 2 * 24 * 3600,) * 2)
    atomic_write_pair(path, b"m2", b"d2")
    assert content(path) == (b"m2", b"d2")
    assert names(tmp_path) == sorted([young.name, foreign.name, "ckpt", "ckpt.data"])


@pytest.mark.usefixtures("without_locks")
def test_the_way_of_windows(tmp_path, monkeypatch):
    """Windows renames closed files only, and cannot sync folders."""
    path = tmp_path / "ckpt"
    replace = os.replace

    def strict_replace(source: str, target: str) -> None:
        assert not still_open(source), source
        replace(source, target)

    monkeypatch.setattr(os, "replace", strict_replace)
    monkeypatch.setattr(sys, "platform", "win32")
    atomic_write(path, b"one")
    atomic_write_pair(path, b"two", b"data")
    marker = tmp_path / f".ckpt.{'0' * 16}.without-data"
    marker.write_bytes(b"three")
    assert content(path) == (b"three", None)
    assert names(tmp_path) == ["ckpt"]


def still_open(path: str) -> bool:
    """Whether this process has a file open (asked where the system can tell)."""
    table = pathlib.Path("/proc/self/fd")
    handles = table.iterdir() if table.exists() else ()
    return any(os.path.realpath(handle) == path for handle in handles)


def test_data_path(tmp_path):
    assert data_path(tmp_path / "ckpt") == os.path.realpath(tmp_path / "ckpt.data")
