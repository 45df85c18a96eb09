"""Functions of users that fail in a run of the command line."""

import pathlib

import pytest
from typer.testing import CliRunner

from onnxtrain.cli import app

MODULE = """
def gone():
    raise OSError("the disk is gone")


def samples():
    yield {"x": 1}
    raise OSError("the disk is gone")


def misspelt(outputs, batch):
    return outputs["skores"].mean()
"""
DATA = ("fit", "model.onnx", "--loss", "cross_entropy", "--device", "cpu", "--data")
LOSS = ("fit", "model.onnx", "--data", "data.npz", "--device", "cpu", "--loss")
FAILING = {
    "data": ((*DATA, "own_code:gone"), "OSError: the disk is gone", "own_code.py:3, in gone:"),
    "samples": ((*DATA, "own_code:samples"), "OSError: the disk is gone", "py:8, in samples:"),
    "loss": ((*LOSS, "own_code:misspelt"), "KeyError: 'skores'", 'return outputs["skores"]'),
}


@pytest.mark.parametrize("case", FAILING)
def test_the_error_and_its_place_are_told_without_a_trace(folder, cli, case):
    args, error, place = FAILING[case]
    pathlib.Path("own_code.py").write_text(MODULE)
    output = cli(*args, code=1)
    assert f"error: {error}\n" in output and place in output
    assert "add --debug for the whole trace" in output
    result = CliRunner().invoke(app, [*args, "--debug"])
    assert f"{type(result.exception).__name__}: {result.exception}" == error


def test_a_module_that_is_no_python_is_named(folder, cli):
    pathlib.Path("no_python.py").write_text("def load(:\n")
    output = cli(*DATA, "no_python:load", code=1)
    assert "'no_python' of 'no_python:load' cannot be imported" in output
    assert "no_python.py, line 1" in output
