"""Text tables: read whole or part by part, with the same result."""

import json

import numpy as np
import pytest

from onnxtrain.data import Rows, Slot, bind, complete, lazy, read
from onnxtrain.errors import FeedError

TASTES = ["" if i < 6 or i % 4 == 0 else ("sour", "sweet")[i % 2] for i in range(30)]
CSV = 'size,"name, full",taste,pair\n' + "".join(
    f'{i / 7},"a ""{i % 3}""\nb",{taste},{i} {i + 1}\n' for i, taste in enumerate(TASTES)
)
NUMBERS = "a,b\n" + "".join(f"{i},{i * i}\n\n" for i in range(40))


@pytest.fixture
def in_parts(monkeypatch):
    """Every file counts as large, and is read a few lines at a time."""
    monkeypatch.setattr(lazy, "LARGE", 0)
    monkeypatch.setattr(lazy, "PART", 40)


def both(path, monkeypatch):
    """The columns of a file read whole, and read in parts."""
    whole = read(path).values
    monkeypatch.setattr(lazy, "LARGE", 0)
    monkeypatch.setattr(lazy, "PART", 40)
    return whole, read(path).values


@pytest.mark.parametrize("text", [CSV, NUMBERS], ids=["words", "numbers"])
def test_parts_give_what_the_whole_file_gives(tmp_path, monkeypatch, text):
    path = tmp_path / "a.csv"
    path.write_text(text, newline="")
    whole, parts = both(path, monkeypatch)
    assert whole.keys() == parts.keys()
    for name, column in whole.items():
        assert isinstance(parts[name], Rows)
        np.testing.assert_array_equal(column, np.asarray(parts[name]))
        some = np.array([7, 0, 7, 21])
        np.testing.assert_array_equal(column[some], parts[name][some])


def test_words_that_are_missing_at_first_are_dropped_and_numbered(tmp_path, in_parts):
    path = tmp_path / "a.csv"
    path.write_text(CSV, newline="")
    left = complete(read(path), "drop")
    classes = {}
    found = bind(left, [Slot("taste", np.dtype(np.int64), (None,))], None, classes)
    assert classes == {"taste": ["sour", "sweet"]}
    kept = [i for i in range(30) if i >= 6 and i % 4]
    np.testing.assert_array_equal(np.asarray(found["taste"]), [i % 2 for i in kept])


MIXED = {
    "a word late": ("a,b\n" + "1,2\n" * 30 + "1,x\n", "column 'b' has 'x' in line 32"),
    "a number late": ("a,b\n" + "1,x\n" * 30 + "1,2\n", "column 'b' has 'x' in line 2"),
    "a row too long": ("a,b\n" + "1,2\n" * 30 + "1,2,x\n", "line 32 has 3 fields"),
    "other lists": ("a,b\n" + "1,1 2\n" * 30 + "1,1 2 3\n", "one length"),
}


@pytest.mark.parametrize("case", MIXED)
def test_what_does_not_fit_is_found_in_a_late_part(tmp_path, in_parts, case):
    text, message = MIXED[case]
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(FeedError, match=message):
        read(tmp_path / "a.csv")


def test_a_sharp_is_no_comment(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3,4#5\n")
    with pytest.raises(FeedError, match="column 'b' has '4#5' in line 3"):
        read(tmp_path / "a.csv")


LINES = [
    {"x": [i, i + 0.5], "n": i if i < 20 else None, "word": None if i < 9 else "ab"[i % 2]}
    for i in range(30)
]


def test_json_lines_are_rows(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)))
    whole, parts = both(path, monkeypatch)
    assert whole["x"].shape == (30, 2)
    for name, column in whole.items():
        assert isinstance(parts[name], Rows)
        np.testing.assert_array_equal(column, np.asarray(parts[name]))
    np.testing.assert_array_equal(whole["n"], [*range(20), *[np.nan] * 10])


def test_whole_numbers_of_any_length_are_numbers(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": [1, 10000000000000000000000], "n": -1}\n')
    assert read(tmp_path / "a.jsonl").values["x"].tolist() == [[1.0, 1e22]]


def test_characters_may_be_written_as_two(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"y": "\\ud83d\\ude00"}\n')
    assert read(tmp_path / "a.jsonl").values["y"].tolist() == ["\U0001f600"]


BAD_LINES = {
    "no JSON": ('{"x": 1}\n{"x": \n', "line 2 is no JSON"),
    "no object": ("[1, 2]\n", "line 1 has a list, no object"),
    "another key": ('{"x": 1}\n{"y": 1}\n', "'y' is not in its first line"),
    "nothing": ("\n\n", "it has no rows"),
    "depth": ("[" * 100_000, "line 1 has too many lists within lists"),
    "half a character": ('{"x": 1, "y": "\\ud800"}\n', "line 1 has half a character"),
    "other lengths": ('{"x": [1, 2]}\n{"x": [1]}\n', "lists of numbers of one length"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_bad_json_lines_are_explained(tmp_path, case):
    text, message = BAD_LINES[case]
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(FeedError, match=message):
        read(tmp_path / "a.jsonl")
