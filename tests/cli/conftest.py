import pathlib

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from cli.small import classifier, samples
from onnxtrain.cli import app


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A working folder with a model and data in it."""
    monkeypatch.chdir(tmp_path)
    onnx.save(classifier(), "model.onnx")
    np.savez("data.npz", **samples())
    return tmp_path


@pytest.fixture
def cli():
    """Runs a line of arguments, and checks that it exits as expected and never with a trace."""

    def run(*args: object, code: int = 0) -> str:
        result = CliRunner().invoke(app, [str(a) for a in args])
        assert result.exit_code == code, result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert "Traceback" not in result.output
        assert "\x1b" not in result.output
        if code:
            assert result.stderr
        return result.output

    return run
