"""What a pretended GPU cannot show. A test that comes to it is not judged."""

from __future__ import annotations

from typing import NoReturn

import pytest

LIMITS = {
    "attention": "dropout inside of torch's own attention draws numbers that only a GPU draws",
    "kernels": "torch has no kernel of this operator, or of this type, for a CPU (cuDNN's)",
    "memory": "the memory of a device has no size here, and nobody counts it",
    "pinned": "memory of the host is never pinned, and no copy is under way while others run",
    "processes": "other processes pretend nothing",
    "storage": "addresses on a device mean nothing, and tensors there keep the memory they have",
    "streams": "everything happens at once and in order: a wait that is missing is not found",
    "tracing": "tensors without memory, as exporters trace them, do not know those of the device",
    "time": "nothing takes the time that it takes on a GPU",
}
"""By name. Triton is hidden, so tests of its kernels are skipped as where it is not installed."""


class NotJudged(pytest.skip.Exception):
    """A test needs what a pretended GPU does not have.

    It is no ``Exception``: nothing that is tested may take it for an error of its own.
    """

    def __init__(self, limit: str) -> None:
        super().__init__(f"{limit}: {LIMITS[limit]}")
        self._use_item_location = True  # the summary shows the test instead of this file


met: list[NotJudged] = []
"""What the running test has come to, whatever became of it."""


def note(limit: str) -> None:
    """Go on, but do not judge this test."""
    met.append(NotJudged(limit))


def stop(limit: str) -> NoReturn:
    """End this test without judging it."""
    note(limit)
    raise met[-1]
