"""What the plugin does while tests run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator

import pytest
import torch

from pretended import limits
from pretended.answers import answering, set_sync_debug_mode
from pretended.rules import READS
from pretended.tensors import tensors_on_cuda

SHOWN = 20
_running = False
_answers = contextlib.ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    """Pretend until the end: tests that need a GPU are chosen by what torch answers."""
    _answers.enter_context(answering())
    torch.__future__.set_swap_module_params_on_conversion(True)
    sys.addaudithook(_notice)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let torch answer by itself again."""
    _answers.close()


def _notice(event: str, given: tuple[object, ...]) -> None:
    if _running and event == "subprocess.Popen":
        limits.note("processes")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let tensors be on cuda:0 in tests that need it."""
    global _running
    if "gpu" not in item.keywords:
        return (yield)
    limits.met.clear()
    _running = True
    try:
        with tensors_on_cuda():
            return (yield)
    finally:
        _running = False
        set_sync_debug_mode("default")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Tests of several processes come to a limit at once."""
    if "gpu" in item.keywords and "multi" in item.keywords:
        limits.stop("processes")
    return (yield from _judged())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """See ``_judged``."""
    return (yield from _judged())


def _judged() -> Generator[None, None, None]:
    """A test that came to a limit is neither passed nor failed, whatever became of it."""
    try:
        return (yield)
    finally:
        if limits.met:
            raise limits.met[0]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where the package read what is on the device."""
    reads = [line for line in READS.counted.most_common() if "outside of" not in line[0]]
    if reads:
        terminalreporter.section("the host waited for the device")
        for place, count in reads[:SHOWN]:
            terminalreporter.write_line(f"{count:6} {place}")
