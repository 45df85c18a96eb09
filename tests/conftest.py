"""Fixtures and switches that every test may use."""

import importlib

import pytest
import torch

from onnxtrain.kernels import library
from onnxtrain.testing.poison import poisoned


def _importable(family: str) -> bool:
    try:
        importlib.import_module(f"onnxtrain.kernels.{family}")
    except Exception as error:
        print(f"kernels/{family}: {error}")
        return False
    return True


library.FAMILIES = tuple(f for f in library.FAMILIES if _importable(f))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="torch sees no CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Each device a kernel runs on."""
    return str(request.param)


@pytest.fixture
def poison():
    """Memory that is not initialised reads as NaN or a large number."""
    with poisoned():
        yield
