"""Fixtures and switches that every test may use."""

import atexit
import gc
import os
import pathlib
import random
import sys
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from onnxtrain.testing.poison import poisoned

sys.path.insert(0, str(pathlib.Path(__file__).parent / "models"))
from exports import Cache, folder_of_exports

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


YOUNG = 10_000
"""New objects after which Python looks for garbage among them; 700 are often still in use."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Look for garbage among the tests that were collected once, not again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG)
        atexit.register(gc.unfreeze)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give neighbours to the same process: they use what it has made already."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let several processes share the tests, also where there is no xdist."""
    parser.addoption("--shard", metavar="I/N", help="run the Ith of N shares of the tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out other shares, and what needs a GPU where torch sees none.

    The summary counts them as deselected.
    """
    first, _, parts = (config.getoption("shard") or "0/1").partition("/")
    here = torch.cuda.is_available()
    chosen = [
        zlib.crc32(item.nodeid.encode()) % int(parts) == int(first)
        and (here or "gpu" not in item.keywords)
        for item in items
    ]
    left_out = [item for item, keep in zip(items, chosen, strict=True) if not keep]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item, keep in zip(items, chosen, strict=True) if keep]


@pytest.fixture(scope="session", autouse=True)
def kept_exports(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> None:
    """Models are exported once, also where several processes share the tests."""
    Cache.folder = folder_of_exports(tmp_path_factory, pytestconfig)


@pytest.fixture(autouse=True)
def the_same_numbers() -> None:
    """Draw the same numbers in each run, whatever ran before: a failure can be repeated.

    Let float32 mean float32, too: TF32 on a GPU would only compare precisions.
    """
    test, _, _ = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")
    seed = zlib.crc32(test.encode())
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():  # where there is none, torch would keep a trace of this call
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed)
    random.seed(seed)
    for backend in (torch.backends.cuda.matmul, torch.backends.cudnn):
        backend.allow_tf32 = False


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
