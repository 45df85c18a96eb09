import numpy as np
import pytest

from onnxtrain.data import read
from onnxtrain.errors import FeedError


def test_npz_arrays_keep_name_type_and_shape(tmp_path):
    x = np.arange(6, dtype=np.int16).reshape(3, 2)
    np.savez(tmp_path / "a.npz", x=x)
    data = read(tmp_path / "a.npz")
    assert not data.tabular
    assert data.values["x"].dtype == np.int16
    np.testing.assert_array_equal(data.values["x"], x)


def test_csv_columns_go_by_their_header(tmp_path):
    (tmp_path / "a.csv").write_text('\ufeff"length", width\n1,2.5\n3,-4e2\n', encoding="utf-8")
    data = read(tmp_path / "a.csv")
    assert data.tabular
    assert {name: list(column) for name, column in data.values.items()} == {
        "length": [1, 3],
        "width": [2.5, -400],
    }


def test_the_files_of_a_folder_are_joined_by_name(tmp_path):
    for name, value in (("b", 2), ("a", 1)):
        np.savez(tmp_path / f"{name}.npz", x=np.full(2, value))
    (tmp_path / "notes.txt").write_text("not data")
    assert list(read(tmp_path).values["x"]) == [1, 1, 2, 2]


BAD = {
    "a.txt": (b"1,2", "its kind is not known"),
    "a.npz": (b"PK\x03\x04 cut off", "it is damaged"),
    "b.npz": (b"", "it is damaged"),
    "empty.csv": (b"", "it is empty"),
    "headless.csv": (b"1,2\n3,4\n", "must name the columns"),
    "classes.csv": (b"5.1,3.5,setosa\n4.9,3,setosa\n", "must name the columns"),
    "twice.csv": (b"a,a\n1,2\n", "two columns are called 'a'"),
    "rowless.csv": (b"a,b\n", "2 columns, but no rows"),
    "narrow.csv": (b"a,b\n1\n2\n", "2 columns, but rows of 1"),
    "ragged.csv": (b"a,b\n1,2\n3\n", "cannot read data"),
    "words.csv": (b"a,b\n1,2\n2,setosa\n", "column 'b' has 'setosa' in line 3"),
    "latin.csv": (b"a,b\n1,h\xf6he\n", "no text in UTF-8.*\n  iconv -f latin1"),
    "commas.csv": (b"a;b\n1,5;2\n2,5;3\n", "write numbers with a point: 1.5"),
    "lists.csv": (b"a,b\n1,1 2\n2,1 2 3\n", "lists of 2 to 3 numbers"),
    "a.json": (b"[]", "write it as .csv"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_explained(tmp_path, name):
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FeedError, match=message) as caught:
        read(tmp_path / name)
    assert name in str(caught.value)


def test_missing_files_and_empty_folders_are_explained(tmp_path):
    with pytest.raises(FeedError, match="there is no file"):
        read(tmp_path / "none.npz")
    with pytest.raises(FeedError, match=r"has no \.npz or \.csv or \.parquet"):
        read(tmp_path)


def test_python_objects_are_not_loaded(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{}, {}], dtype=object))
    with pytest.raises(FeedError, match="Python objects"):
        read(tmp_path / "a.npz")


def test_files_that_do_not_fit_together_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3)))
    np.savez(tmp_path / "b.npz", x=np.zeros((2, 4)))
    with pytest.raises(FeedError, match="do not fit together"):
        read(tmp_path)
    np.savez(tmp_path / "b.npz", z=np.zeros((2, 3)))
    with pytest.raises(FeedError, match="do not have the same arrays"):
        read(tmp_path)
