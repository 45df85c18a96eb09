import sys

import numpy as np
import pytest
from PIL import Image

from onnxtrain.data import LABELS, Pictures, Slot, bind, read
from onnxtrain.errors import FeedError

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)
Y = Slot("labels", INT, (None,), LABELS)
FIRST, LAST = Slot("x", FLOAT, (None, 3, 4, 4)), Slot("x", FLOAT, (None, 4, 4, 3))


def test_words_of_a_csv_file_become_classes_in_alphabetical_order(tmp_path):
    (tmp_path / "a.csv").write_text("u,v,label\n1,2,dog\n3,4,cat\n5,6,dog\n")
    classes = {}
    found = bind(read(tmp_path / "a.csv"), [Slot("x", FLOAT, (None, 2)), Y], None, classes)
    assert classes == {"labels": ["cat", "dog"]}
    assert found["labels"].tolist() == [1, 0, 1]
    assert found["x"].tolist() == [[1, 2], [3, 4], [5, 6]]


def test_other_data_has_the_same_classes(tmp_path):
    classes = {"labels": ["cat", "cow", "dog"]}
    (tmp_path / "b.csv").write_text("u,label\n1,dog\n")
    slots = [Slot("x", FLOAT, (None, 1)), Y]
    assert bind(read(tmp_path / "b.csv"), slots, None, classes)["labels"].tolist() == [2]
    (tmp_path / "b.csv").write_text("u,label\n1,yak\n")
    with pytest.raises(FeedError, match="'yak' is no class of 'labels'\n  classes  cat, cow, dog"):
        bind(read(tmp_path / "b.csv"), slots, None, classes)


def test_words_are_no_features(tmp_path):
    (tmp_path / "a.csv").write_text("u,colour,label\n1,red,0\n2,blue,1\n")
    with pytest.raises(FeedError, match="column 'colour' has words"):
        bind(read(tmp_path / "a.csv"), [Slot("x", FLOAT, (None, 2)), Y])


def image_folder(folder):
    for number, name in enumerate(("dog", "cat")):
        (folder / name).mkdir(parents=True)
        for index in range(2):
            pixels = np.full((6, 8, 3), (10 * number, 20 + index, 255), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
        (folder / name / "notes.txt").write_text("no image")
    return folder


@pytest.mark.parametrize("slot", [FIRST, LAST], ids=["channels first", "channels last"])
def test_a_folder_of_images_is_read_in_the_layout_of_the_model(tmp_path, slot):
    classes = {}
    found = bind(read(image_folder(tmp_path), [slot, Y]), [slot, Y], None, classes)
    pixels = np.asarray(found["x"])
    assert classes == {"labels": ["cat", "dog"]}
    assert found["labels"].tolist() == [0, 0, 1, 1]
    assert found["x"].shape == (4, *slot.shape[1:])
    corner = pixels[1, :, 0, 0] if slot is FIRST else pixels[1, 0, 0]
    np.testing.assert_allclose(corner, np.array([10, 21, 255]) / 255, rtol=1e-6)


def test_images_are_normalised_and_stretched_or_cropped(tmp_path):
    halves = np.zeros((4, 8, 1), dtype=np.uint8)
    halves[:, 4:] = 255
    (tmp_path / "a").mkdir()
    Image.fromarray(halves[..., 0]).save(tmp_path / "a" / "0.png")
    slot = Slot("x", FLOAT, (None, 1, None, None))
    scaled = Pictures((4, 4), mean=(0.5,), std=(0.5,))
    row = read(tmp_path, [slot], scaled).values["x"][:][0, 0, 0]
    assert row.tolist() == [-1, -1, 1, 1]
    stretched = read(tmp_path, [slot], Pictures((2, 8), crop=False)).values["x"]
    assert stretched.shape == (1, 1, 2, 8)


def test_a_model_of_bytes_gets_bytes(tmp_path):
    slot = Slot("x", np.dtype(np.uint8), (None, 4, 4, 3))
    values = read(image_folder(tmp_path), [slot]).values["x"][:]
    assert values.dtype == np.uint8 and values.max() == 255


BAD_IMAGES = {
    "size": (Slot("x", FLOAT, (None, 3, None, None)), None, "--image-size 224"),
    "other size": (FIRST, (8, 8), "takes images of 4x4, not of 8x8"),
    "channels": (Slot("x", FLOAT, (None, 2, 5, 5)), None, "no axis of 1, 3 or 4 channels"),
    "vector": (Slot("x", FLOAT, (None, 9)), None, "0 inputs of four dimensions"),
}


@pytest.mark.parametrize("case", BAD_IMAGES)
def test_images_that_do_not_fit_are_explained(tmp_path, case):
    slot, size, message = BAD_IMAGES[case]
    with pytest.raises(FeedError, match=message):
        read(image_folder(tmp_path), [slot], Pictures(size))


def test_damaged_images_are_named(tmp_path):
    image_folder(tmp_path)
    (tmp_path / "cat" / "1.png").write_bytes(b"\x89PNG cut off")
    with pytest.raises(FeedError, match=r"cannot read image '.*1.png'"):
        read(tmp_path, [FIRST])


MODULE = """
import numpy as np
X, Y = np.arange(12.0).reshape(6, 2), np.arange(6)

class Data:
    def __len__(self):
        return 6
    def __getitem__(self, i):
        if i >= 6:
            raise RuntimeError("asked for more than there is")
        return X[i], Y[i]

def arrays(): return {"x": X, "labels": Y}
def pair(): return X, Y
def dataset(): return Data()
def samples():
    for x, y in zip(X, Y): yield {"x": x, "labels": y}
def batches():
    for i in (0, 4): yield X[i:i+4], Y[i:i+4]
def empty(): return iter(())
def three():
    yield 1, 2, 3
def number(): return 7
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "given_data.py").write_text(MODULE)
    yield "given_data"
    sys.modules.pop("given_data", None)


@pytest.mark.parametrize("name", ["arrays", "pair", "dataset", "samples", "batches"])
def test_a_function_gives_data_in_many_ways(module, name):
    slots = [Slot("x", FLOAT, (None, 2)), Y]
    found = bind(read(f"{module}:{name}", slots), slots)
    assert found["x"].tolist() == np.arange(12.0).reshape(6, 2).tolist()
    assert found["labels"].tolist() == list(range(6))


BAD_CALLS = {
    "nowhere:f": "there is no module 'nowhere'",
    "given_data:f": "has no 'f'\n  have  Data, arrays",
    "given_data:X": "is a ndarray, not a function",
    "given_data:empty": "gave no data",
    "given_data:three": r"gave 3 values at a time, the model takes 2\n  give  \(x, labels\)",
    "given_data:number": "gave a int",
}


@pytest.mark.parametrize("text", BAD_CALLS)
def test_functions_that_do_not_fit_are_explained(module, text):
    with pytest.raises(FeedError, match=BAD_CALLS[text]):
        read(text, [Slot("x", FLOAT, (None, 2)), Y])


def test_parquet_without_a_reader_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FeedError, match=r"pip install 'onnxtrain\[data\]'"):
        read(tmp_path / "a.parquet")


def test_parquet_columns_are_numbers_words_and_lists(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="reading parquet is an extra")
    from pyarrow import parquet

    columns = {"x": [[1.0, 2.0], [3.0, 4.0]], "label": ["b", "a"]}
    parquet.write_table(arrow.table(columns), tmp_path / "a.parquet")
    found = bind(read(tmp_path / "a.parquet"), [Slot("x", FLOAT, (None, 2)), Y])
    assert found["x"].tolist() == columns["x"]
    assert found["labels"].tolist() == [1, 0]
    parquet.write_table(arrow.table({"x": [[1.0], None]}), tmp_path / "a.parquet")
    with pytest.raises(FeedError, match="column 'x' has no list in row 2"):
        read(tmp_path / "a.parquet")
    parquet.write_table(arrow.table({"x": [1.0, None], "y": [None, "b"]}), tmp_path / "a.parquet")
    values = read(tmp_path / "a.parquet").values
    assert np.isnan(values["x"]).tolist() == [False, True] and values["y"].tolist() == ["", "b"]
