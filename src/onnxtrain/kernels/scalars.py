"""Host scalars: operators accept them with rank 0 or as a vector of one element."""

from __future__ import annotations

from typing import Any


def single(value: Any) -> Any:
    """The number in a host value of one element.

    Raises:
        ValueError: if there is more than one.
    """
    while isinstance(value, list):
        if len(value) != 1:
            raise ValueError(f"a single value is needed, not {value}")
        value = value[0]
    return value


def shape_of(value: Any) -> list[int]:
    """Shape of a host value: [] for a number."""
    return [len(value), *shape_of(value[0])] if isinstance(value, list) else []
