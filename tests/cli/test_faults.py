"""Kills, full disks, read-only folders and damaged files: the last good checkpoint stays."""

import errno
import json
import os
import pathlib
import subprocess
import sys

import pytest

import onnxtrain
from onnxtrain.files import staging
from onnxtrain.formats.native import read_native

FIT = ("fit", "model.onnx", "--data", "data.npz", "--loss", "cross_entropy", "--device", "cpu")
KILLS = 50


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_every_kill_leaves_a_checkpoint_no_older_than_one_interval(tmp_path):
    source = pathlib.Path(onnxtrain.__file__).parents[1]
    script = pathlib.Path(__file__).with_name("killed_fits.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(KILLS)],
        env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert len(seen["positions"]) == KILLS
    assert seen["positions"] == sorted(seen["positions"])
    assert seen["positions"][-1] > KILLS
    assert seen["same"]
    staged = [name for name in seen["files"] if "tmp" in name]
    assert len(staged) <= 1, seen["files"]


BROKEN = {errno.ENOSPC: "No space left on device", errno.EROFS: "Read-only file system"}


@pytest.mark.parametrize("number", BROKEN, ids=errno.errorcode.get)
def test_a_disk_that_refuses_leaves_the_last_checkpoint(folder, cli, monkeypatch, number):
    run = (*FIT, "--checkpoint", "run.ckpt", "--checkpoint-every", "2")
    cli(*run, "--steps", "4")
    before = pathlib.Path("run.ckpt").read_bytes()

    def refuses(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(staging.os, "fsync", refuses)
        output = cli(*run, "--steps", "9", "--resume", code=1)
    assert "run.ckpt" in output and BROKEN[number] in output
    assert pathlib.Path("run.ckpt").read_bytes() == before
    assert sorted(p.name for p in folder.iterdir() if "ckpt" in p.name) == ["run.ckpt"]
    assert "continuing after step 4" in cli(*run, "--steps", "9", "--resume")


def test_a_folder_that_is_read_only_is_noticed_before_training(folder, cli, monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    output = cli(*FIT, "--steps", "2", code=1)
    assert "nothing can be written into '.' (Permission denied)" in output
    assert "name a file in another folder" in output


DAMAGE = {
    "cut off": lambda data: data[:-10],
    "another byte in the values": lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
    "another byte in the header": lambda data: b"\xff" + data[1:],
    "empty": lambda data: b"",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_refused_and_left_alone(folder, cli, kind):
    run = (*FIT, "--checkpoint", "run.ckpt")
    cli(*run, "--steps", "4")
    path = pathlib.Path("run.ckpt")
    damaged = DAMAGE[kind](path.read_bytes())
    path.write_bytes(damaged)
    output = cli(*run, "--steps", "9", "--resume", code=1)
    assert "run.ckpt" in output and ("damaged" in output or "cannot load" in output)
    assert path.read_bytes() == damaged


def test_a_checkpoint_knows_its_checksum(folder, cli):
    cli(*FIT, "--checkpoint", "run.ckpt", "--steps", "2")
    assert isinstance(read_native("run.ckpt")[1]["crc32"], int)
