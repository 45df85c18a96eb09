"""Ctrl-C, SIGTERM and SIGHUP as a wish that a loop can grant between two steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

WISHES = ("SIGINT", "SIGTERM", "SIGHUP")
"""What a user, a machine that goes down and a terminal that is closed send."""

CLOSED = getattr(signal, "SIGPIPE", signal.SIGTERM)
"""The signal for a run whose output cannot be written."""


class StopSignals:
    """With: the first signal is remembered, a second one acts as it always does."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for name in WISHES:
                number = getattr(signal, name, None)
                if number is None or (name == "SIGHUP" and _ignored(number)):
                    continue  # nohup asks for that
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self.__exit__()


def _ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN
