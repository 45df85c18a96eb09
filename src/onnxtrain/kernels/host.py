"""Values that the host reads before a kernel runs."""

from __future__ import annotations

from typing import Any


def number(value: Any, name: str, default: Any = None) -> Any:
    """The one number in a host value of any rank, or the default if the input is left out."""
    if value is None:
        return default
    while isinstance(value, list):
        if len(value) != 1:
            raise ValueError(f"{name} has {len(value)} values, allowed is a single value")
        value = value[0]
    return value
