"""Exported models are made once per run, also when several processes share the tests."""

import os

import architectures
import pytest


@pytest.fixture(scope="session", autouse=True)
def kept_exports(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    architectures.Cache.folder = shared / "exports"
    architectures.Cache.folder.mkdir(exist_ok=True)
