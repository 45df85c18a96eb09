"""Text tables (``.csv``, ``.tsv``): the first line names the columns, large ones go to the disk."""

from __future__ import annotations

import codecs
import csv
import dataclasses
import pathlib
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any, TextIO

import numpy as np

from onnxtrain.data import lazy
from onnxtrain.data.arrays import Array, Arrays, wanted
from onnxtrain.data.columns import Columns, MixedColumnError
from onnxtrain.data.fields import column, first_odd, is_number, odd_field
from onnxtrain.data.lazy import Samples
from onnxtrain.errors import FeedError

DELIMITERS = ",;\t|"
_LONGEST = 1000
"""Lines that a field between quotes may have."""


def read_csv(path: pathlib.Path, ignored: Collection[str] = ()) -> Arrays:
    """The columns of a file whose first line names them; the delimiter is told from that line.

    A large file is read part by part, and its columns stay on the disk.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            delimiter = _delimiter(file)
            reader = csv.reader(file, delimiter=delimiter)
            names = _header(path, [name.strip() for name in next(reader, [])])
            table = _Table(path, delimiter, names, wanted(names, ignored, str(path)))
            return Arrays(table.read(file, reader.line_num), tabular=True, source=str(path))
    except UnicodeDecodeError as error:
        raise FeedError(
            f"cannot read data from '{path}': it is no text in UTF-8 ({error.reason})\n"
            f"  iconv -f {_encoding(path)} -t utf-8 '{path}' > "
            f"'{path.with_stem(path.stem + '-utf8')}'"
        ) from error


def _encoding(path: pathlib.Path) -> str:
    """What a text that is not in UTF-8 is probably in: spreadsheets mark UTF-16 as such."""
    with path.open("rb") as file:
        start = file.read(2)
    return "utf-16" if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "latin1"


def _delimiter(file: TextIO) -> str:
    """The sign that cuts the first line into most fields; the file is then at its beginning."""
    first = file.readline()
    file.seek(0)
    counts = {sign: len(next(csv.reader([first], delimiter=sign), [])) for sign in DELIMITERS}
    return max(counts, key=lambda sign: counts[sign])


def _header(path: pathlib.Path, names: list[str]) -> list[str]:
    """The names of the columns from the fields of the first line."""
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
    numbers = [name for name in names if is_number(name)]
    counted = [[str(i + first) for i in range(len(numbers))] for first in (0, 1)]
    return bool(numbers) and (len(numbers) == len(names) or numbers not in counted)


@dataclasses.dataclass(frozen=True)
class _Table:
    """A text table whose first line was read.

    Attributes:
        path: The file.
        delimiter: What stands between two fields.
        names: Names of all columns.
        keep: Names of those that are wanted.
    """

    path: pathlib.Path
    delimiter: str
    names: list[str]
    keep: list[str]

    def read(self, file: TextIO, done: int) -> dict[str, Samples]:
        """The columns from the lines that are left in a file; ``done`` lines were read."""
        if self.path.stat().st_size <= lazy.LARGE:
            lines = file.readlines()
            if not any(line.strip() for line in lines):
                raise self._misshapen("no rows")
            return dict(self._columns(lines, done + 1))
        columns = Columns()
        try:
            for lines in _chunks(file):
                if any(line.strip() for line in lines):
                    columns.add(self._columns(lines, done + 1))
                done += len(lines)
        except MixedColumnError as error:
            raise self._mixed(error.name) from None
        return columns.arrays()

    def _columns(self, lines: list[str], first: int) -> dict[str, Array]:
        """The columns of some lines, the first of which has a number in the file."""
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "loadtxt", UserWarning)
                rows = np.loadtxt(
                    lines, delimiter=self.delimiter, ndmin=2, quotechar='"', comments=None
                )
        except ValueError:
            return self._with_words(lines, first)
        if rows.shape[1] != len(self.names):
            raise self._misshapen(f"rows of {rows.shape[1]}")
        return {name: rows[:, i] for i, name in enumerate(self.names) if name in self.keep}

    def _with_words(self, lines: list[str], first: int) -> dict[str, Array]:
        """Columns of lines that are not numbers alone."""
        reader = csv.reader(lines, delimiter=self.delimiter)
        rows, places = [], []
        for row in reader:
            if not row:
                continue
            rows.append(row)
            places.append(first + reader.line_num - 1)
            if len(row) != len(self.names):
                raise FeedError(
                    f"cannot read data from '{self.path}': line {places[-1]} has {len(row)} "
                    f"fields, the first line names {len(self.names)}\n"
                    "  a field with a comma in it stands between quotes"
                )
        fields = zip(self.names, zip(*rows, strict=True), strict=True)
        return {
            name: column(self.path, name, values, places)
            for name, values in fields
            if name in self.keep
        }

    def _misshapen(self, found: str) -> FeedError:
        return FeedError(
            f"cannot read data from '{self.path}': {len(self.names)} columns, but {found}\n"
            "  every line below the first must have a field for each column"
        )

    def _mixed(self, name: str) -> FeedError:
        """Which field of a column is of another kind than others, found by reading them again."""
        place = self.names.index(name)
        with self.path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=self.delimiter)
            next(reader)
            lines: list[int] = []
            found = first_odd(_noted(reader, place, lines))
        assert found is not None, "a column of numbers alone is not mixed"
        return odd_field(self.path, name, found[1], lines[found[0]])


def _noted(reader: Any, place: int, lines: list[int]) -> Iterator[str]:
    """The fields at a place of all rows; their lines are noted."""
    for row in reader:
        if row:
            lines.append(reader.line_num)
            yield row[place]


def _chunks(file: TextIO) -> Iterator[list[str]]:
    """The lines that are left in a file, in parts that end at the end of a row."""
    while lines := file.readlines(lazy.PART):
        quotes = sum(line.count('"') for line in lines)
        for _ in range(_LONGEST):
            if quotes % 2 == 0 or not (line := file.readline()):
                break
            lines.append(line)
            quotes += line.count('"')
        yield lines
