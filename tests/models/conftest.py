"""Exported models are made once, also when several processes share the tests."""

import architectures
import pytest
from architectures.kept import folder_of_exports


@pytest.fixture(scope="session", autouse=True)
def kept_exports(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> None:
    architectures.Cache.folder = folder_of_exports(tmp_path_factory, pytestconfig)
