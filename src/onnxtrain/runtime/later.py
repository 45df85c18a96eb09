"""Runs that a thread makes, and callbacks that get what came of them."""

from __future__ import annotations

import concurrent.futures
import sys
import threading
from collections.abc import Callable
from typing import Any

Callback = Callable[[list[Any], Any, str], None]


class Later:
    """A thread that runs one thing after the other, started when there is something to run."""

    def __init__(self) -> None:
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    def __call__(self, run: Callable[[], list[Any]], callback: Callback, data: Any) -> None:
        """Run in the thread, then call back there with the results, the data and an error."""
        if self._pool is None:
            self._pool = concurrent.futures.ThreadPoolExecutor(1, "onnxtrain-run")
        self._pool.submit(_run, run, callback, data)


def _run(run: Callable[[], list[Any]], callback: Callback, data: Any) -> None:
    results: list[Any] = []
    problem = ""
    try:
        results = run()
    except Exception as error:
        problem = str(error) or type(error).__name__
    try:
        callback(results, data, problem)
    except Exception:
        thread = threading.current_thread()
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), thread)))
