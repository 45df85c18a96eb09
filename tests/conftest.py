"""Fixtures and switches that every test may use."""

import os
import random
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from onnxtrain.testing.poison import poisoned

# torch asks for this before the first product of matrices on CUDA if results must repeat.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# Triton reads this when it is imported: without a GPU its kernels are interpreted.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

_PATIENT = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("repeatable", _PATIENT, max_examples=25, derandomize=True)
settings.register_profile("deep", _PATIENT, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

WITHOUT_RULE = pytest.StashKey[list[str]]()
"""Operators of the table that have neither a gradient rule nor a declared zero."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a GPU where torch sees none; the summary counts it as deselected."""
    if torch.cuda.is_available():
        return
    config.hook.pytest_deselected(items=[item for item in items if "gpu" in item.keywords])
    items[:] = [item for item in items if "gpu" not in item.keywords]


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """Let float32 mean float32: TF32 on a GPU would only compare precisions."""
    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = False
    yield
    for backend, allowed in zip(backends, before, strict=True):
        backend.allow_tf32 = allowed


@pytest.fixture(autouse=True)
def the_same_numbers(request: pytest.FixtureRequest) -> None:
    """Draw the same numbers in each run, whatever ran before: a failure can be repeated."""
    seed = zlib.crc32(request.node.nodeid.encode())
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Each device a kernel runs on."""
    return str(request.param)


@pytest.fixture
def without_rule(request: pytest.FixtureRequest) -> list[str]:
    """A list that is printed at the end of the run."""
    return request.config.stash.setdefault(WITHOUT_RULE, [])


@pytest.fixture
def poison() -> Iterator[None]:
    """Memory that is not initialised reads as NaN or a large number."""
    with poisoned():
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the operators that cannot be differentiated, if gradients were tested."""
    if lines := terminalreporter.config.stash.get(WITHOUT_RULE, None):
        terminalreporter.section("operators without a gradient rule")
        terminalreporter.write_line(", ".join(lines))
