"""Ctrl-C, SIGTERM and SIGHUP as a wish that a loop can grant between two steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

_WISHES = ("SIGINT", "SIGTERM", "SIGHUP")
"""What a user, a machine that goes down and a terminal that is closed send."""

CLOSED = getattr(signal, "SIGPIPE", signal.SIGTERM)
"""The signal for a run whose output cannot be written."""


def wishes() -> list[signal.Signals]:
    """The signals that ask a run to stop; SIGHUP is none where it is ignored, as nohup asks."""
    known = [getattr(signal, name) for name in _WISHES if hasattr(signal, name)]
    return [
        number
        for number in known
        if number.name != "SIGHUP" or signal.getsignal(number) is not signal.SIG_IGN
    ]


class StopSignals:
    """With: the first signal is remembered, a second one acts as it always does.

    One of several processes may get a signal twice, from the terminal or the system, which send it
    to all of them, and from whoever started it and hands it on: there it is heard once.
    """

    def __init__(self, one_of_several: bool = False) -> None:
        self.received: signal.Signals | None = None
        self._one_of_several = one_of_several
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._remember) for number in wishes()}
        return self

    def __exit__(self, *_: object) -> None:
        late = self._one_of_several and self.received is not None
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if late else handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        if not self._one_of_several:
            self.__exit__()
