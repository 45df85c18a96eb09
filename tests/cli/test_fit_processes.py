"""fit in several processes: the same course as in one, one voice, and a clear end."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import typer
from typer.testing import CliRunner

import onnxtrain
from cli.small import classifier, samples
from cli.started import start
from onnxtrain.cli import app
from onnxtrain.cli.fitting import loop, processes, ranks
from onnxtrain.distributed.groups import Groups
from onnxtrain.errors import OnnxTrainError
from onnxtrain.testing.processes import attempt_world, run_world

pytestmark = pytest.mark.multi
FIT = ("fit", "model.onnx", "--data", "data.npz", "--loss", "cross_entropy", "--lr", "0.02",
       "--no-dropout", "--epochs", "3", "--batch-size", "13", "--device", "cpu",
       "--val-split", "0.2", "--metric", "accuracy", "--metric", "f1")  # fmt: skip


def in_world(groups: Groups, folder: str, *words: str) -> tuple[int, str]:
    """Exit code and output of a line in one of the processes that torchrun would start."""
    os.chdir(folder)
    os.environ.update(
        RANK=str(groups.rank), WORLD_SIZE=str(groups.world_size), MASTER_ADDR="-", MASTER_PORT="0"
    )
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def runs(groups: Groups, folder: str) -> list[tuple[int, str]]:
    """A whole run; and one that a signal to one process stops, and that goes on."""
    found = [in_world(groups, folder, *FIT, "--out", "two.onnx", "--log", "two.jsonl")]
    own, step = [*FIT, "--out", "stopped.onnx"], loop.Loop._step

    def stopping(self: loop.Loop, *args: Any) -> None:
        step(self, *args)
        if self.position == 6 and groups.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    loop.Loop._step = stopping  # type: ignore[method-assign]
    found.append(in_world(groups, folder, *own))
    loop.Loop._step = step  # type: ignore[method-assign]
    if groups.rank == 0:
        kept = pathlib.Path("stopped.ckpt").read_bytes()
        pathlib.Path("alone.ckpt").write_bytes(kept)
    found.append(in_world(groups, folder, *own, "--resume"))
    found.append(in_world(groups, folder, *FIT, "--loss", "hinge"))
    if groups.rank == 1:
        pathlib.Path("elsewhere").mkdir()
        os.chdir("elsewhere")
    found.append(in_world(groups, os.getcwd(), *FIT))
    return found


def weights(name: str) -> dict[str, Any]:
    tensors = onnx.load(name).graph.initializer
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}


def last_figures(name: str) -> list[float]:
    entry = json.loads(pathlib.Path(name).read_text().splitlines()[-1])
    return [entry[key] for key in ("mean_loss", "val_loss", "val_accuracy", "val_f1")]


def test_two_processes_take_the_course_of_one(folder, cli):
    one, other = run_world(2, runs, str(folder))
    assert [code for code, _ in one] == [0, 143, 0, 1, 1] == [code for code, _ in other]
    assert "train on cpu in 2 processes" in one[0][1] and "wrote two.onnx" in one[0][1]
    assert [text for _, text in other] == [""] * 5
    cli(*FIT, "--out", "one.onnx", "--log", "one.jsonl")
    np.testing.assert_allclose(last_figures("two.jsonl"), last_figures("one.jsonl"), rtol=1e-5)
    assert "stopped by SIGTERM after step 6" in one[1][1]
    cli(*FIT, "--out", "alone.onnx", "--resume")
    for name, value in weights("one.onnx").items():
        np.testing.assert_array_equal(weights("stopped.onnx")[name], weights("two.onnx")[name])
        for others in ("two.onnx", "alone.onnx"):
            np.testing.assert_allclose(weights(others)[name], value, rtol=1e-4, atol=1e-5)
    assert one[3][1].startswith("error: unknown loss 'hinge'")
    assert one[4][1].startswith("error: process 1 of 2 failed: there is no file 'model.onnx'")


def dying(groups: Groups, folder: str) -> tuple[int, str]:
    if groups.rank == 1:
        step = loop.Loop._step

        def last(self: loop.Loop, *args: Any) -> None:
            if self.position == 4:
                os._exit(9)
            step(self, *args)

        loop.Loop._step = last  # type: ignore[method-assign]
    return in_world(groups, folder, *FIT, "--checkpoint-every", "3")


def test_a_process_that_dies_ends_the_run_and_leaves_the_checkpoint(folder, cli):
    (fine, (code, text)), _ = attempt_world(2, dying, str(folder))
    assert fine and code == 1
    assert "error: another process of this run is gone or silent" in text
    assert "--resume" in text
    assert "continuing after step 3" in cli(*FIT, "--resume")


def otherwise(groups: Groups, folder: str) -> list[tuple[int, str]]:
    """Runs whose data, or whose held-out data, is not the same in both processes."""
    data = samples()
    np.savez(
        pathlib.Path(folder, f"own{groups.rank}.npz"), x=data["x"] + groups.rank, y=data["labels"]
    )
    own = f"own{groups.rank}.npz"
    return [
        in_world(groups, folder, *FIT, "--data", own),
        in_world(groups, folder, *FIT[:-6], "--val-data", own),
    ]


def test_processes_with_other_data_are_refused(folder):
    (training, held_out), other = run_world(2, otherwise, str(folder))
    assert training[0] == 1 and held_out[0] == 1
    said = "error: process 1 and process 0 do not train the same: they differ in validation data"
    assert training[1].startswith(f"{said}, data\n")
    assert held_out[1].startswith(f"{said}\n")
    assert other == [(1, ""), (1, "")]


FIXED = ("fit", "fixed.onnx", *FIT[2:9], "--device", "cpu", "--steps", "4", "--accumulate")


def fixed_batches(groups: Groups, folder: str) -> list[tuple[int, str]]:
    return [
        in_world(groups, folder, *FIXED, "3", "--out", "two.onnx"),
        in_world(groups, folder, *FIXED, "1"),
        in_world(groups, folder, *FIT, "--batch-size", "1"),
        in_world(groups, folder, *FIT, "--device", "cpu:0"),
    ]


def test_a_model_for_fixed_batches_shares_whole_ones(folder, cli):
    onnx.save(classifier(batch=4), "fixed.onnx")
    (shared, fixed, small, device), _ = run_world(2, fixed_batches, str(folder))
    assert shared[0] == 0
    assert "give  --accumulate 2  or more" in fixed[1]
    assert "give  --batch-size 2  or more" in small[1]
    assert "give  --device cpu; each process" in device[1]
    cli(*FIXED, "3", "--out", "one.onnx")
    for name, value in weights("one.onnx").items():
        np.testing.assert_allclose(weights("two.onnx")[name], value, rtol=1e-4, atol=1e-5)


class Closing:
    """Groups of a process that is one of two, as far as an end needs them."""

    rank, world_size, device = 0, 2, "cpu"
    closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("end", "closed"),
    [(None, 1), (typer.Exit(143), 1), (OnnxTrainError("no"), 1), (ConnectionError("gone"), 0)],
)
def test_an_end_in_order_leaves_no_threads(monkeypatch, end, closed):
    groups = Closing()
    monkeypatch.setattr(ranks, "is_started", lambda: True)
    monkeypatch.setattr(ranks, "_groups", lambda device: groups)
    with contextlib.suppress(typer.Exit, OnnxTrainError), ranks.connected("cpu"):
        if end is not None:
            raise end
    assert groups.closed == closed


def test_processes_are_started_by_an_option(folder, capfd, monkeypatch):
    """Two real processes; what they print goes past the runner."""
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(onnxtrain.__file__).parents[1]))
    result = CliRunner().invoke(app, [*FIT, "--processes", "2", "--epochs", "1"])
    printed = capfd.readouterr().out
    assert result.exit_code == 0, result.output
    assert len(re.findall("wrote trained.onnx", printed)) == 1
    assert len(samples()["x"]) == 64 and "51 samples, 4 steps" in printed


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        ([*FIT, "--processes", "14"], "--batch-size 14"),
        ([*FIT[:9], "--processes", "33"], "--batch-size 33"),
        ([*FIXED, "2", "--processes", "3"], "--accumulate 3"),
    ],
    ids=["batches of 13", "batches of no given size", "batches of a model"],
)
def test_batches_too_small_to_share_start_no_process(folder, cli, monkeypatch, line, cure):
    onnx.save(classifier(batch=4), "fixed.onnx")
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setattr(processes, "cores", lambda: 64)
    output = cli(*line, code=1)
    assert "cannot be shared by" in output and f"give  {cure}  or more, or start fewer" in output


def test_more_processes_than_a_machine_can_run_are_not_started(folder, cli, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setattr(processes, "cores", lambda: 3)
    for batch in ("32", "500"):
        output = cli(*FIT, "--batch-size", batch, "--processes", "500", code=1)
        assert "500 processes are too many for this machine, which has 3 cores" in output
        assert "give  --processes 3, say" in output
    monkeypatch.undo()
    assert processes.cores() >= 1


def test_more_processes_than_gpus_are_not_started(folder, cli, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setattr(processes, "checked_device", lambda name: "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    output = cli(*FIT, "--device", "cuda", "--processes", "3", code=1)
    assert "3 processes need a GPU each, this machine has 2" in output
    assert "give  --processes 2, or  --device cpu" in output


def test_what_no_process_could_do_starts_none(folder, cli, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    two = ("--processes", "2")
    assert "there is no file 'mode.onnx'" in cli("fit", "mode.onnx", *FIT[2:], *two, code=1)
    assert "not both" in cli(*FIT, "--val-data", "data.npz", *two, code=1)


@pytest.mark.parametrize(
    ("number", "send"),
    [(signal.SIGTERM, os.killpg), (signal.SIGHUP, os.killpg), (signal.SIGINT, os.kill)],
    ids=["SIGTERM to all", "SIGHUP to all", "SIGINT to the first one"],
)
def test_a_signal_stops_started_processes_with_a_checkpoint(folder, number, send):
    """A terminal and a system send it to all, and who started the others hands it on, too."""
    line = [*FIT, "--epochs", "5000", "--processes", "2", "--out", "part.onnx"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = start(*line, start_new_session=True, **streams)
    while not process.stdout.readline().startswith("epoch 1/"):
        assert process.poll() is None
    send(process.pid, number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number, output
    assert f"stopped by {number.name} after step" in output and "was ended by" not in output
    assert pathlib.Path("part.ckpt").exists()
