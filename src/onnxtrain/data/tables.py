"""Text tables (``.csv``, ``.tsv``): a column is an array of numbers, of words, or of lists."""

from __future__ import annotations

import csv
import pathlib
import re
import warnings
from collections.abc import Collection, Sequence

import numpy as np

from onnxtrain.data.arrays import Array, Arrays, wanted
from onnxtrain.errors import FeedError

DELIMITERS = ",;\t|"
MISSING = frozenset({"", "?", "-", "na", "n/a", "nan", "null", "none"})
"""What a field without a value may have in it, in small letters."""
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_BETWEEN = re.compile(r"[\s,;]+")


def read_csv(path: pathlib.Path, ignored: Collection[str] = ()) -> Arrays:
    """The columns of a file whose first line names them; the delimiter is told from that line."""
    try:
        delimiter = _delimiter(path)
        names = _header(path, delimiter)
        keep = wanted(names, ignored, str(path))
        return Arrays(_columns(path, names, delimiter, keep), tabular=True, source=str(path))
    except UnicodeDecodeError as error:
        raise FeedError(
            f"cannot read data from '{path}': it is no text in UTF-8 ({error.reason})\n"
            f"  iconv -f latin1 -t utf-8 '{path}' > '{path.with_stem(path.stem + '-utf8')}'"
        ) from error


def _delimiter(path: pathlib.Path) -> str:
    """The sign that cuts the first line into most fields."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
    counts = {sign: len(next(csv.reader([first], delimiter=sign), [])) for sign in DELIMITERS}
    return max(counts, key=lambda sign: counts[sign])


def _header(path: pathlib.Path, delimiter: str) -> list[str]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        names = [name.strip() for name in next(csv.reader(file, delimiter=delimiter), [])]
    if not names:
        raise FeedError(
            f"cannot read data from '{path}': it is empty\n"
            "  its first line must name the columns, say  x_0,x_1,label"
        )
    if _are_values(names):
        more = ",..." if len(names) > 4 else ""
        raise FeedError(
            f"cannot read data from '{path}': its first line must name the columns\n"
            f"  it begins with  {','.join(names[:4])}{more}\n"
            f"  put a line such as  {','.join([*(f'x_{i}' for i in range(3)), 'label'])}  before it"
        )
    names = [name or f"column_{place}" for place, name in enumerate(names, start=1)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise FeedError(
            f"cannot read data from '{path}': two columns are called {twice[0]!r}\n"
            "  give every column a name of its own in the first line"
        )
    return names


def _are_values(names: Sequence[str]) -> bool:
    """Whether a line holds numbers and no names; columns may be called 0, 1, 2."""
    numbers = [name for name in names if _is_number(name)]
    counted = [[str(i + first) for i in range(len(numbers))] for first in (0, 1)]
    return bool(numbers) and (len(numbers) == len(names) or numbers not in counted)


def _columns(
    path: pathlib.Path, names: list[str], delimiter: str, keep: Collection[str]
) -> dict[str, Array]:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "loadtxt", UserWarning)
            rows = np.loadtxt(
                path, delimiter=delimiter, skiprows=1, ndmin=2, quotechar='"', encoding="utf-8-sig"
            )
    except UnicodeDecodeError:
        raise
    except ValueError:
        return _with_words(path, names, delimiter, keep)
    if rows.size == 0 or rows.shape[1] != len(names):
        found = "no rows" if rows.size == 0 else f"rows of {rows.shape[1]}"
        raise FeedError(
            f"cannot read data from '{path}': {len(names)} columns, but {found}\n"
            "  every line below the first must have a field for each column"
        )
    return {name: rows[:, i] for i, name in enumerate(names) if name in keep}


def _with_words(
    path: pathlib.Path, names: list[str], delimiter: str, keep: Collection[str]
) -> dict[str, Array]:
    """Columns of a file that is not numbers alone."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.reader(file, delimiter=delimiter) if row][1:]
    for line, row in enumerate(rows, start=2):
        if len(row) != len(names):
            raise FeedError(
                f"cannot read data from '{path}': line {line} has {len(row)} fields, "
                f"the first line names {len(names)}\n"
                "  a field with a comma in it stands between quotes"
            )
    columns = zip(names, zip(*rows, strict=True), strict=True)
    return {name: _column(path, name, column) for name, column in columns if name in keep}


def _column(path: pathlib.Path, name: str, fields: Sequence[str]) -> Array:
    """Numbers with NaN for missing ones, words with empty text for them, or lists of numbers."""
    fields = ["" if field.strip().lower() in MISSING else field.strip() for field in fields]
    present = [field for field in fields if field]
    numeric = [_is_number(field) for field in present]
    if all(numeric):
        return np.array([float(field) if field else np.nan for field in fields])
    if not any(numeric) and not all(map(_DECIMAL_COMMA.fullmatch, present)):
        lists = [_numbers(field) for field in present]
        if all(len(numbers) > 1 for numbers in lists):
            return _lists(path, name, lists, len(present) < len(fields))
        return np.array(fields)
    odd = present[numeric.index(False)]
    cure = "a column has a number in every line (or a word in every line, for classes)"
    if _DECIMAL_COMMA.fullmatch(odd):
        cure = f"write numbers with a point: {odd.replace(',', '.')}; and lists as [1, 2]"
    raise FeedError(
        f"cannot read data from '{path}': column '{name}' has {odd!r} in line "
        f"{fields.index(odd) + 2}\n  {cure}"
    )


def _numbers(field: str) -> list[float]:
    """The numbers of ``1 2 3`` or ``[1, 2, 3]``; none if there is something else in it."""
    inner = field.strip().strip("[]()").strip()
    words = _BETWEEN.split(inner)
    return [float(word) for word in words] if all(map(_is_number, words)) else []


def _lists(path: pathlib.Path, name: str, lists: list[list[float]], gaps: bool) -> Array:
    lengths = {len(numbers) for numbers in lists}
    if len(lengths) > 1 or gaps:
        shown = f"{min(lengths)} to {max(lengths)}" if not gaps else f"0 to {max(lengths)}"
        raise FeedError(
            f"cannot read data from '{path}': column '{name}' has lists of {shown} numbers\n"
            "  give all of them one length: cut them, or fill them up with 0, say"
        )
    return np.array(lists)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
