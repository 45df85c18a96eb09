"""Numbers that options give, checked where they are given."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxtrain.errors import OptionError

LARGEST = float(np.finfo(np.float32).max)
"""The largest number that a step can be given."""


def number_of(given: Any) -> float | None:
    """A number that float32 can hold; None if it is none."""
    try:
        number = float(given)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return None if isinstance(given, str) or not abs(number) <= LARGEST else number


def check_number(name: str, given: Any, below: float | None = None) -> None:
    """Refuse an option that is no number of at least 0, or not below a limit.

    Raises:
        OptionError: if it is none.
    """
    number = number_of(given)
    if number is None or number < 0 or (below is not None and number >= below):
        also = "" if below is None else f" and below {below:g}"
        raise OptionError(f"{name} must be a finite number of at least 0{also}, not {given!r}")


def check_limit(name: str, limit: Any) -> None:
    """Refuse a limit of gradients that is not above 0; an infinite one is none.

    Raises:
        OptionError: if it is not.
    """
    if isinstance(limit, float) and limit > LARGEST:
        return
    number = number_of(limit)
    if number is None or number <= 0:
        raise OptionError(
            f"{name} must be a number above 0, not {limit!r}\n  leave it out to clip nothing"
        )


def check_betas(betas: Any) -> None:
    """Refuse what is no pair of shares.

    Raises:
        OptionError: if it is none.
    """
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise OptionError(f"betas are two numbers, not {betas!r}\n  give  (0.9, 0.999), say")
    for place, beta in enumerate(betas):
        check_number(f"betas[{place}]", beta, below=1)
