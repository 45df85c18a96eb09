"""``.jsonl`` files: an object a line, whose keys are the columns; large ones go to the disk."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Collection
from typing import Any

from onnxtrain.data import lazy
from onnxtrain.data.arrays import Arrays
from onnxtrain.data.columns import Columns, MixedColumnError
from onnxtrain.data.values import checked, neither
from onnxtrain.errors import FeedError

_HALVES = re.compile(r"\\u[dD][89a-fA-F]")
"""What characters begin with that are written as two."""


def read_json_lines(path: pathlib.Path, ignored: Collection[str] = ()) -> Arrays:
    """The columns of a file; lists of equal length become wider arrays.

    A large file is read part by part, and its columns stay on the disk.

    Raises:
        FeedError: if a line is no object, or has other keys than the first one.
    """
    large = path.stat().st_size > lazy.LARGE
    columns, names, done = Columns(), list[str](), 0
    with path.open(encoding="utf-8-sig") as file:
        while lines := file.readlines(lazy.PART) if large else file.readlines():
            rows = [_row(path, n, text) for n, text in enumerate(lines, done + 1) if text.strip()]
            done += len(lines)
            if not rows:
                continue
            names = names or list(rows[0])
            part = checked(path, _columns(path, names, rows), ignored)
            if not large:
                return Arrays(dict(part), tabular=True, source=str(path))
            try:
                columns.add(part)
            except MixedColumnError as error:
                raise neither(path, error.name) from None
    if not names:
        raise FeedError(
            f"cannot read data from '{path}': it has no rows\n"
            '  write an object a line, say  {"x": [1.5, 2], "label": 0}'
        )
    return Arrays(columns.arrays(), tabular=True, source=str(path))


def _row(path: pathlib.Path, line: int, text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
        if _HALVES.search(text):
            json.dumps(row, ensure_ascii=False).encode()
    except RecursionError:
        row, reason = None, "has too many lists within lists"
    except UnicodeEncodeError:
        row, reason = None, "has half a character, an unpaired surrogate"
    except ValueError as error:
        row, reason = None, f"is no JSON ({error})"
    else:
        reason = f"has a {type(row).__name__}, no object"
    if not isinstance(row, dict):
        raise FeedError(
            f"cannot read data from '{path}': line {line} {reason}\n"
            '  write an object a line, say  {"x": [1.5, 2], "label": 0}'
        )
    return row


def _columns(
    path: pathlib.Path, names: list[str], rows: list[dict[str, Any]]
) -> dict[str, list[Any]]:
    """The values of each key; a key that a row does not have is a value that is missing."""
    if others := sorted({key for row in rows for key in row} - set(names)):
        raise FeedError(
            f"cannot read data from '{path}': '{others[0]}' is not in its first line\n"
            f"  have  {', '.join(names)}; give all keys in the first line, null for no value"
        )
    return {name: [row.get(name) for row in rows] for name in names}
