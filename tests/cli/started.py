"""The command line in a process of its own, with the package that is under test."""

import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import onnxtrain


def start(*args: str, **options: Any) -> subprocess.Popen:
    """It hears every signal, whatever the tests themselves were told to ignore."""
    source = pathlib.Path(onnxtrain.__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": str(source), "TERM": "xterm", "COLUMNS": "120"}
    command = [sys.executable, "-m", "onnxtrain.cli", *args]
    return subprocess.Popen(command, text=True, env=env, preexec_fn=_hear, **options)


def _hear() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
