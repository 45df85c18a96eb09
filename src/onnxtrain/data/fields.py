"""Fields of a text table: a column of them is an array of numbers, of words, or of lists."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable, Sequence

import numpy as np

from onnxtrain.data.arrays import Array
from onnxtrain.errors import FeedError

MISSING = frozenset({"", "?", "-", "na", "n/a", "nan", "null", "none"})
"""What a field without a value may have in it, in small letters."""
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_BETWEEN = re.compile(r"[\s,;]+")


def column(path: pathlib.Path, name: str, fields: Sequence[str], lines: Sequence[int]) -> Array:
    """Numbers with NaN for missing ones, words with empty text for them, or lists of numbers.

    Args:
        path: The file, for messages.
        name: Name of the column.
        fields: Its fields.
        lines: The line of each field.

    Raises:
        FeedError: if it is none of these.
    """
    fields = ["" if field.strip().lower() in MISSING else field.strip() for field in fields]
    present = [field for field in fields if field]
    numeric = [is_number(field) for field in present]
    if all(numeric):
        return np.array([float(field) if field else np.nan for field in fields])
    if not any(numeric) and not all(map(_DECIMAL_COMMA.fullmatch, present)):
        lists = [_numbers(field) for field in present]
        if all(len(numbers) > 1 for numbers in lists):
            return _lists(path, name, lists, len(present) < len(fields))
        return np.array(fields)
    odd = present[numeric.index(False)]
    raise odd_field(path, name, odd, lines[fields.index(odd)])


def first_odd(fields: Iterable[str]) -> tuple[int, str] | None:
    """Place and text of the first field that is no number, if there is one."""
    for place, field in enumerate(fields):
        if field.strip().lower() not in MISSING and not is_number(field):
            return place, field.strip()
    return None


def odd_field(path: pathlib.Path, name: str, odd: str, line: int) -> FeedError:
    """What is wrong with a field that is of another kind than others of its column."""
    cure = "a column has a number in every line (or a word in every line, for classes)"
    if _DECIMAL_COMMA.fullmatch(odd):
        cure = f"write numbers with a point: {odd.replace(',', '.')}; and lists as [1, 2]"
    elif len(_numbers(odd)) > 1:
        cure = "give all lists of a column one length, and let no field be a single number"
    return FeedError(
        f"cannot read data from '{path}': column '{name}' has {odd!r} in line {line}\n  {cure}"
    )


def _numbers(field: str) -> list[float]:
    """The numbers of ``1 2 3`` or ``[1, 2, 3]``; none if there is something else in it."""
    inner = field.strip().strip("[]()").strip()
    words = _BETWEEN.split(inner)
    return [float(word) for word in words] if all(map(is_number, words)) else []


def _lists(path: pathlib.Path, name: str, lists: list[list[float]], gaps: bool) -> Array:
    lengths = {len(numbers) for numbers in lists}
    if len(lengths) > 1 or gaps:
        shown = f"{min(lengths)} to {max(lengths)}" if not gaps else f"0 to {max(lengths)}"
        raise FeedError(
            f"cannot read data from '{path}': column '{name}' has lists of {shown} numbers\n"
            "  give all of them one length: cut them, or fill them up with 0, say"
        )
    return np.array(lists)


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
