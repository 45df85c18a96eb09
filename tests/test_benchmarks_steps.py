"""Benchmarks of whole models run: small ones, and for no longer than it takes to see that."""

from __future__ import annotations

import importlib
import pathlib
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import pairs  # noqa: E402
import report  # noqa: E402
import turns  # noqa: E402

ALONE = {"__main__", "reference_steps"}
"""What runs as a program; the second one in an interpreter that has the reference."""
MODULES = sorted({path.stem for path in (ROOT / "benchmarks").glob("*.py")} - ALONE)


@pytest.mark.parametrize("name", MODULES)
def test_every_benchmark_finds_what_it_imports(name: str) -> None:
    importlib.import_module(name)


@pytest.fixture
def results(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> list[dict[str, str]]:
    """What a benchmark saves."""
    monkeypatch.setattr(sys, "argv", [name, "--device", "cpu", "--save", *arguments])
    importlib.import_module(name).main()
    return report.read(name)


def test_steps_of_a_small_model(results: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "ROUNDS", 1)
    (row,) = run(monkeypatch, "steps", "--only", "MLP", "--seconds", "0.01")
    assert row["better peer"] == "torch eager" and row["reference ms"] == ""
    assert float(row["onnxtrain ms"]) > 0 and float(row["ratio"]) == float(row["ratio to it"])


def test_steps_of_a_whole_architecture(
    results: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import steps

    monkeypatch.setattr(steps, "ROUNDS_OF_WHOLE", 1)
    monkeypatch.setattr(steps, "whole", lambda name, samples: pairs.whole(name, samples, False))
    given = ["--whole", "lstm", "--samples", "2", "--seconds", "0.01"]
    (row,) = run(monkeypatch, "steps", *given)
    assert row["model"] == "lstm" and row["samples"] == "2" and float(row["torch eager ms"]) > 0


def test_forward_passes_beside_both_peers(
    results: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import forward

    monkeypatch.setattr(forward, "SECONDS", 0.01)
    monkeypatch.setattr(forward, "ROUNDS", 1)
    (row,) = run(monkeypatch, "forward", "--small", "--only", "lstm", "--samples", "2")
    times = [float(row[f"{way} ms"]) for way in ("onnxtrain", "onnxruntime CPU", "torch eager")]
    assert all(ms > 0 for ms in times)
    assert float(row["to torch"]) == pytest.approx(times[0] / times[2])


def test_memory_of_every_way_to_wait(
    results: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import memory

    monkeypatch.setattr(memory, "SECONDS", 0.01)
    given = ["--small", "--only", "unet", "--samples", "2"]
    (row,) = run(monkeypatch, "memory", *given)
    held = {way: float(row[f"{way} MiB"]) for way in ("onnxtrain", *memory.LESS)}
    assert 0 < held["layers"] < held["cheap"] < held["onnxtrain"] and held["pack8"] < held["exact"]


@pytest.mark.parametrize("name", pairs.SPINE)
def test_both_of_a_pair_take_the_same_step(name: str) -> None:
    pair = pairs.spine(name)
    trainer = pair.trainer("cpu")
    theirs = pair.loss(pair.module(**pair.inputs), pair.labels)
    ours = trainer.step(pair.batch)
    torch.testing.assert_close(torch.tensor(float(ours)), theirs.detach(), rtol=1e-4, atol=1e-5)
