"""Fixtures of the training tests."""

import pathlib

import pytest

from training.small import write_artifacts


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Artifacts of the small MLP; read only."""
    return write_artifacts(tmp_path_factory.mktemp("artifacts"), nominal_checkpoint=True)
