"""Data that is larger than memory: it stays on the disk, and trains like data in memory."""

import numpy as np
import pytest
from PIL import Image

from onnxtrain.data import (
    LABELS,
    Batches,
    Order,
    Rows,
    Slot,
    bind,
    images,
    lazy,
    parts,
    read,
    split,
)
from onnxtrain.errors import FeedError

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)
SLOTS = [Slot("x", FLOAT, (None, 2, 3)), Slot("labels", INT, (None,), LABELS)]
COUNT = 23
PIXELS = np.random.default_rng(0).integers(0, 256, (COUNT, 6)).astype(np.uint8)
KINDS = np.random.default_rng(1).integers(0, 9, COUNT)


@pytest.fixture
def large(monkeypatch):
    """Every array counts as large, and passes look at few samples at a time."""
    monkeypatch.setattr(lazy, "LARGE", 0)
    monkeypatch.setattr(lazy, "PART", 40)
    monkeypatch.setattr("onnxtrain.data.numpy_files.PART", 40)
    monkeypatch.setattr(images, "WHOLE", 0)


def npz(folder, save):
    save(folder / "a.npz", x=PIXELS, labels=KINDS)
    return folder / "a.npz"


def folder_of_npz(folder):
    for name, part in (("a", slice(0, 5)), ("b", slice(5, 6)), ("c", slice(6, None))):
        np.savez(folder / f"{name}.npz", x=PIXELS[part], labels=KINDS[part])
    return folder


def folder_of_npy(folder):
    np.save(folder / "x.npy", PIXELS)
    np.save(folder / "labels.npy", np.asfortranarray(KINDS))
    return folder


def parquet(folder):
    arrow = pytest.importorskip("pyarrow", reason="reading parquet is an extra")
    from pyarrow.parquet import write_table

    table = arrow.table({"x": PIXELS.tolist(), "labels": KINDS})
    write_table(table, folder / "a.parquet", row_group_size=4)
    return folder / "a.parquet"


def parquet_columns(folder):
    arrow = pytest.importorskip("pyarrow", reason="reading parquet is an extra")
    from pyarrow.parquet import write_table

    columns = {f"x_{i}": PIXELS[:, i] for i in range(6)}
    write_table(arrow.table({**columns, "labels": KINDS}), folder / "a.parquet", row_group_size=4)
    return folder / "a.parquet"


SOURCES = {
    "npz": lambda folder: npz(folder, np.savez),
    "compressed npz": lambda folder: npz(folder, np.savez_compressed),
    "folder of npz": folder_of_npz,
    "folder of npy": folder_of_npy,
    "parquet": parquet,
    "parquet columns": parquet_columns,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_large_data_gives_the_same_batches(tmp_path, monkeypatch, kind):
    place = SOURCES[kind](tmp_path)
    whole = split(bind(read(place, SLOTS), SLOTS), 0.3, seed=0)
    monkeypatch.setattr(lazy, "LARGE", 0)
    monkeypatch.setattr("onnxtrain.data.numpy_files.PART", 40)
    later = split(bind(read(place, SLOTS), SLOTS), 0.3, seed=0)
    for one, other in zip(whole, later, strict=True):
        assert isinstance(one["x"], np.ndarray) and isinstance(other["x"], Rows)
        order = Order(len(one["x"]), 4, seed=2)
        for step in (0, 1, 7):
            for name, array in Batches(one, order).at(step).items():
                found = Batches(other, order).at(step)[name]
                assert type(found) is np.ndarray and found.flags.writeable
                assert found.dtype == array.dtype
                np.testing.assert_array_equal(found, array)
        in_order = np.concatenate([batch["x"] for batch in Batches(other, order)])
        np.testing.assert_array_equal(in_order, one["x"])


def test_only_the_samples_of_a_batch_are_read(tmp_path, large):
    found = bind(read(npz(tmp_path, np.savez), SLOTS), SLOTS)["x"]
    asked = []

    class Counted:
        shape, dtype = found.shape, found.dtype

        def __len__(self):
            return len(found)

        def __getitem__(self, which):
            asked.append(len(which))
            return found[which]

    training, _ = split({"x": Rows(Counted())}, 0.5, seed=0)
    Batches(training, Order(len(training["x"]), 3, seed=0)).at(1)
    assert asked == [3]


def test_parts_are_all_samples_in_order(tmp_path, large):
    found = bind(read(npz(tmp_path, np.savez), SLOTS), SLOTS)["labels"]
    seen = list(parts(found))
    assert len(seen) > 3
    np.testing.assert_array_equal(np.concatenate(seen), KINDS)


def test_large_labels_are_checked_too(tmp_path, large):
    np.savez(tmp_path / "a.npz", x=PIXELS, labels=KINDS + 0.5)
    with pytest.raises(FeedError, match="values that are no int64"):
        bind(read(tmp_path / "a.npz", SLOTS), SLOTS)


def test_large_files_that_do_not_fit_together_are_refused(tmp_path, large):
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3)))
    np.savez(tmp_path / "b.npz", x=np.zeros((2, 4)))
    with pytest.raises(FeedError, match="do not fit together"):
        read(tmp_path)


def test_a_cut_off_file_is_refused_when_it_is_opened(tmp_path, large):
    np.save(tmp_path / "x.npy", PIXELS)
    data = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(data[:-1])
    with pytest.raises(FeedError, match="it is damaged or not an npy file"):
        read(tmp_path / "x.npy")


def test_images_are_decoded_batch_by_batch(tmp_path, monkeypatch):
    for name in ("dark", "light"):
        (tmp_path / name).mkdir()
        for index in range(4):
            pixels = np.full((4, 4), 40 * index + 100 * (name == "light"), np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{index}.png")
    slots = [Slot("x", FLOAT, (None, 1, 4, 4)), SLOTS[1]]
    whole = bind(read(tmp_path, slots), slots)
    monkeypatch.setattr(images, "WHOLE", 0)
    opened = []
    decode = images._pixels
    monkeypatch.setattr(images, "_pixels", lambda *args: (opened.append(args[0]), decode(*args))[1])
    later = bind(read(tmp_path, slots), slots)
    assert not opened
    order = Order(8, 3, seed=0)
    for step in range(4):
        one, other = (Batches(arrays, order).at(step) for arrays in (whole, later))
        np.testing.assert_array_equal(one["x"], other["x"])
    assert len(opened) == 3 + 3 + 2 + 3
    assert whole["x"].identity == later["x"].identity
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "dark" / "3.png")
    assert bind(read(tmp_path, slots), slots)["x"].identity != whole["x"].identity
