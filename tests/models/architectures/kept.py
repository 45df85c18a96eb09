"""Where exported models are kept from run to run: an export takes seconds, a test less."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import pathlib

import pytest

MAKERS = ("torch", "onnx", "onnxscript", "transformers")
"""Packages whose versions decide what an export looks like."""


def folder_of_exports(temporary: pytest.TempPathFactory, config: pytest.Config) -> pathlib.Path:
    """A folder for this state of the sources and packages, shared by all processes of a run.

    It is in pytest's cache; ``pytest --cache-clear`` empties it.
    """
    cache = getattr(config, "cache", None)
    if cache is not None:
        folder = pathlib.Path(cache.mkdir("exports")) / _state()
    else:
        base = temporary.getbasetemp()
        folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "exports"
    folder.mkdir(exist_ok=True, parents=True)
    return folder


def _state() -> str:
    """A name for the sources of the models and the versions of what exports them."""
    sha = hashlib.sha256()
    for package in MAKERS:
        sha.update(f"{package} {importlib.metadata.version(package)} ".encode())
    here = pathlib.Path(__file__).parent
    for source in [*sorted(here.glob("*.py")), here.parent / "zoo.py"]:
        sha.update(source.read_bytes())
    return sha.hexdigest()[:16]
