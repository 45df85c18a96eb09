"""Runs tests that need a GPU without one: ``make pretend ARGS="tests/training -k capture"``.

    PYTHONPATH=src:tests python -m pytest -p pretended.plugin -m gpu tests/training

Tensors on cuda:0 are pretended: the CPU computes them, and what a GPU would refuse is an error.
Results are those of the CPU's kernels, so this says nothing of rounding or speed. Triton is hidden,
so that portable kernels run and tests of others are skipped. A test that needs what is not there
(``limits.py``) is not judged: it is skipped, with the reason, whatever became of it.

All of it leans on internals of torch; it was written for 2.13.
"""

from __future__ import annotations

import importlib
import sys

import pytest

from pretended import native

try:
    native.load()
except native.CannotPretend as error:
    sys.exit(str(error))
sys.modules["triton"] = None  # type: ignore[assignment] # as where it is not installed


def pytest_configure(config: pytest.Config) -> None:
    """Hand over to what needs torch, which must not be imported before."""
    config.pluginmanager.register(importlib.import_module("pretended.running"))
