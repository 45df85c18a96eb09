"""Sizes of a model of which one is varied at a time, and how much the time of a step grows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Size:
    """A model and its batch."""

    batch: int
    sequence: int
    depth: int
    vocabulary: int
    width: int


BASE = Size(batch=8, sequence=512, depth=6, vocabulary=16384, width=512)
VALUES = {
    "batch": (1, 2, 4, 8, 16, 32),
    "sequence": (128, 256, 512, 1024, 2048),
    "depth": (2, 6, 12, 24),
    "vocabulary": (1024, 4096, 16384, 65536, 131072),
}
SMALL = Size(batch=2, sequence=32, depth=1, vocabulary=256, width=64)
SMALL_VALUES = {"batch": (2, 4), "sequence": (32, 64), "depth": (1, 2), "vocabulary": (256, 512)}


def sizes(base: Size, axis: str, values: tuple[int, ...]) -> Iterator[Size]:
    """The sizes with one of their numbers varied."""
    return (dataclasses.replace(base, **{axis: value}) for value in values)


def growth(axis: str, found: list[tuple[Size, dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each size: its time, that of a unit, and how much each grew since the row before.

    A cost that grows as it should has ``ms grew`` at most ``size grew``, but for attention, whose
    cost is the square of the sequence's length.
    """
    rows: list[dict[str, Any]] = []
    before: tuple[int, dict[str, Any]] | None = None
    for size, result in found:
        value = getattr(size, axis)
        rows.append(
            {
                "varied": axis,
                "value": value,
                **dataclasses.asdict(size),
                **result,
                "ms per unit": result["ms"] / value,
                "size grew": value / before[0] if before else "",
                "ms grew": result["ms"] / before[1]["ms"] if before else "",
                "torch ms grew": result["torch ms"] / before[1]["torch ms"] if before else "",
                "to torch": result["ms"] / result["torch ms"],
            }
        )
        before = value, result
    return rows


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """What is printed of a row: without the sizes that stay the same."""
    fixed = {field.name for field in dataclasses.fields(Size)}
    return {key: value for key, value in row.items() if key not in fixed}
