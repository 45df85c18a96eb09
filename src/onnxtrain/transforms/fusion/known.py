"""What may be known of a value: a number, a count or a triangle."""

from __future__ import annotations

import dataclasses

from onnxtrain.graph.inference.products import Dim


@dataclasses.dataclass(frozen=True)
class Number:
    """The same number everywhere."""

    value: float


@dataclasses.dataclass(frozen=True)
class Count:
    """The index along an axis, counted from the end, plus a number; and how far it counts."""

    axis: int
    offset: int
    size: Dim | None


@dataclasses.dataclass(frozen=True)
class Triangle:
    """One number where j - i <= k, another elsewhere, for so many rows and columns.

    Who uses it must see to it that there are no more rows and columns than that.
    """

    k: int
    inside: float
    outside: float
    rows: Dim | None
    columns: Dim | None

    def replaced(self, inside: float, outside: float) -> Triangle:
        """Other numbers in the same places."""
        return dataclasses.replace(self, inside=inside, outside=outside)


Known = Number | Count | Triangle

COLUMN, ROW = -1, -2
