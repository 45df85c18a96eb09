import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import onnxtrain
from onnxtrain.cli import app
from onnxtrain.errors import ModelError

VERBS = ("check", "diff", "env", "export", "fit", "gradcheck", "info", "ops", "plan")


def test_help_names_every_verb(cli):
    output = cli("--help")
    assert all(f"\n  {verb} " in output for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(cli, verb):
    assert f"onnxtrain {verb}" in cli(verb, "--help").replace("root", "onnxtrain")


def test_help_does_not_wait_for_heavy_imports():
    check = (
        "import sys; from typer.testing import CliRunner; from onnxtrain.cli import app\n"
        "assert CliRunner().invoke(app, ['fit', '--help']).exit_code == 0\n"
        "print(*sorted({'torch', 'onnx', 'onnx_ir', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_version(cli):
    assert cli("--version").strip() == f"onnxtrain {onnxtrain.__version__}"


def test_the_package_is_the_command():
    command = [sys.executable, "-m", "onnxtrain", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"onnxtrain {onnxtrain.__version__}"


def test_what_a_terminal_cannot_show_is_printed_as_numbers(folder):
    name, report = os.fsdecode(b"\xff.onnx"), "report.html"
    (folder / "model.onnx").rename(name)
    fit = ["fit", name, "--data", "data.npz", "--loss", "cross_entropy", "--report", report]
    command = [sys.executable, "-m", "onnxtrain", *fit, "--steps", "1", "--device", "cpu"]
    coded = {**os.environ, "PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(command, capture_output=True, text=True, env=coded)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(r"\udcff.onnx: 4 of 5 tensors")
    assert r"\udcff.onnx" in (folder / report).read_text()


def test_unknown_verbs_are_refused(cli):
    assert "there is no verb 'frobnicate'" in cli("frobnicate", code=2)


@pytest.mark.parametrize("args", [("--debug", "info", "none"), ("info", "none", "--debug")])
def test_debug_lets_the_error_through(folder, args):
    result = CliRunner().invoke(app, list(args))
    assert isinstance(result.exception, ModelError)


def test_messages_go_to_stderr(folder):
    result = CliRunner().invoke(app, ["info", "none"])
    assert result.stdout == ""
    assert result.stderr == "error: there is no file 'none'\n"
