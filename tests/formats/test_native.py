"""Our own checkpoints round-trip, are plain safetensors files, and damaged ones are refused."""

from __future__ import annotations

import json
import pathlib
import random

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxtrain.errors import CheckpointError, SaveError
from onnxtrain.formats import native
from onnxtrain.formats.native import looks_like, read_native, write_native
from onnxtrain.formats.odtc import CheckpointData, write_checkpoint

MANIFEST = {
    "step": 12,
    "learning_rate": 1e-3,
    "fingerprint": "sha256:00ff",
    "schedule": {"kind": "linear", "warmup": [1, 2.5, None, True]},
    "title": "größer",
}
STANDARD = [d for d in native._DTYPES.values() if d.kind in "biuf" and d.type.__module__ == "numpy"]


def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "param/w": rng.normal(size=(3, 5)).astype(np.float32),
        "param/half": rng.normal(size=7).astype(ml_dtypes.bfloat16),
        "optim/w/momentum0": rng.normal(size=(3, 5)),
        "rng/cpu": rng.integers(0, 255, size=13).astype(np.uint8),
        "empty": np.zeros((0, 4), np.int64),
        "scalar": np.array(3, np.int16),
    }


def assert_equal(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        found = actual[name]
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tobytes() == array.tobytes()
        assert found.flags.writeable


def test_round_trip(tmp_path):
    write_native(tmp_path / "ckpt", tensors(), MANIFEST)
    found, manifest = read_native(tmp_path / "ckpt")
    assert_equal(found, tensors())
    assert manifest == MANIFEST
    assert [p.name for p in tmp_path.iterdir()] == ["ckpt"]


def test_nothing(tmp_path):
    write_native(tmp_path / "ckpt", {}, {})
    assert read_native(tmp_path / "ckpt") == ({}, {})


@pytest.mark.parametrize("dtype", native._DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 5)])
def test_every_element_type(tmp_path, dtype, shape):
    arrays = {"odd": np.ones(3, np.uint8), "x": np.ones(shape).astype(dtype)}
    write_native(tmp_path / "ckpt", arrays, {})
    assert_equal(read_native(tmp_path / "ckpt")[0], arrays)


def test_arrays_in_any_order_of_memory_and_bytes(tmp_path):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    arrays = {"t": base.T, "step": base[::2, ::3], "big": base.astype(">f4")}
    write_native(tmp_path / "ckpt", arrays, {})
    found, _ = read_native(tmp_path / "ckpt")
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


def test_the_safetensors_package_reads_it(tmp_path):
    arrays = {str(d): np.arange(5).reshape(1, 5).astype(d) for d in STANDARD}
    write_native(tmp_path / "ckpt", arrays, MANIFEST)
    assert_equal(safetensors.numpy.load_file(tmp_path / "ckpt"), arrays)
    with safetensors.safe_open(tmp_path / "ckpt", framework="np") as file:
        metadata = file.metadata()
    assert metadata["format"] == "onnxtrain-checkpoint"
    assert metadata["version"] == "1"
    assert json.loads(metadata["manifest"]) == MANIFEST


def test_the_safetensors_package_knows_our_small_floats(tmp_path):
    names = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
    arrays = {name: np.array([1.5, -2.0, 4.0], getattr(ml_dtypes, name)) for name in names}
    write_native(tmp_path / "ckpt", arrays, {})
    found = dict(safetensors.deserialize((tmp_path / "ckpt").read_bytes()))
    assert {name: (entry["dtype"], bytes(entry["data"])) for name, entry in found.items()} == {
        "bfloat16": ("BF16", arrays["bfloat16"].tobytes()),
        "float8_e4m3fn": ("F8_E4M3", arrays["float8_e4m3fn"].tobytes()),
        "float8_e5m2": ("F8_E5M2", arrays["float8_e5m2"].tobytes()),
    }


def test_every_tensor_is_aligned(tmp_path):
    write_native(tmp_path / "ckpt", tensors(), MANIFEST)
    content = (tmp_path / "ckpt").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    for name, array in tensors().items():
        assert (8 + length + header[name]["data_offsets"][0]) % array.itemsize == 0


def test_a_file_of_the_safetensors_package(tmp_path):
    """What another writer made is read too, if it has our metadata."""
    arrays = {"b": np.arange(3, dtype=np.uint8), "a": np.arange(4.0)}
    metadata = {"format": "onnxtrain-checkpoint", "version": "1", "manifest": '{"step": 1}'}
    safetensors.numpy.save_file(arrays, tmp_path / "ckpt", metadata)
    found, manifest = read_native(tmp_path / "ckpt")
    assert_equal(found, arrays)
    assert manifest == {"step": 1}


@pytest.mark.parametrize(
    "arrays, manifest",
    [
        ({"w": np.array(["text"])}, {}),
        ({"w": np.zeros(2, ml_dtypes.int4)}, {}),
        ({"__metadata__": np.zeros(2)}, {}),
        ({}, {"w": object()}),
    ],
)
def test_what_the_format_cannot_hold(tmp_path, arrays, manifest):
    with pytest.raises(CheckpointError, match=r"cannot save checkpoint .*ckpt"):
        write_native(tmp_path / "ckpt", arrays, manifest)
    assert not (tmp_path / "ckpt").exists()


def test_a_header_that_no_reader_takes_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(native, "_LONGEST_HEADER", 200)
    with pytest.raises(CheckpointError, match=r"its header has .* bytes, 200 are allowed"):
        write_native(tmp_path / "file", tensors(), MANIFEST)
    assert not list(tmp_path.iterdir())


def test_a_refusal_of_the_system(tmp_path):
    with pytest.raises(SaveError, match="missing"):
        write_native(tmp_path / "missing" / "ckpt", {}, {})


def test_looks_like(tmp_path):
    write_native(tmp_path / "native", tensors(), MANIFEST)
    write_checkpoint(tmp_path / "odtc", CheckpointData(trainable={"w": np.zeros(3)}))
    safetensors.numpy.save_file({"w": np.zeros(3)}, tmp_path / "other")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "noise").write_bytes(random.Random(0).randbytes(1000))
    kinds = {p.name: looks_like(p) for p in tmp_path.iterdir()}
    assert kinds == {
        "native": "native",
        "odtc": "odtc",
        "other": None,
        "empty": None,
        "noise": None,
    }
    with pytest.raises(CheckpointError, match="No such file"):
        looks_like(tmp_path / "nothing")


def write_header(path: pathlib.Path, header: object, rest: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + rest)


OURS = {"format": "onnxtrain-checkpoint", "version": "1", "manifest": "{}"}


def entry(dtype: object, shape: object, start: object, stop: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


BAD_HEADERS = {
    "not json": b"{]",
    "not utf-8": b'{"\xff": 1}',
    "deep": b"[" * 100_000,
    "list": [],
    "no metadata": {},
    "other format": {"__metadata__": {"format": "pt"}},
    "version": {"__metadata__": OURS | {"version": "2"}},
    "no manifest": {"__metadata__": {"format": "onnxtrain-checkpoint", "version": "1"}},
    "manifest not json": {"__metadata__": OURS | {"manifest": "{"}},
    "manifest not a table": {"__metadata__": OURS | {"manifest": "[]"}},
    "manifest not text": {"__metadata__": OURS | {"manifest": 1}},
    "unknown type": {"__metadata__": OURS, "w": entry("F3", [8], 0, 8)},
    "unhashable type": {"__metadata__": OURS, "w": entry(["F32"], [2], 0, 8)},
    "wrong size": {"__metadata__": OURS, "w": entry("F32", [3], 0, 8)},
    "negative": {"__metadata__": OURS, "w": entry("U8", [-2, -4], 0, 8)},
    "fraction": {"__metadata__": OURS, "w": entry("U8", [8.0], 0, 8)},
    "huge": {"__metadata__": OURS, "w": entry("U8", [2**62], 0, 2**62)},
    "huge and empty": {"__metadata__": OURS, "w": entry("U8", [0, 2**62, 2**62], 0, 0)},
    "many dimensions": {"__metadata__": OURS, "w": entry("U8", [1] * 70 + [8], 0, 8)},
    "gap": {"__metadata__": OURS, "w": entry("U8", [7], 1, 8)},
    "rest": {"__metadata__": OURS, "w": entry("U8", [7], 0, 7)},
    "overlap": {
        "__metadata__": OURS,
        "v": entry("U8", [8], 0, 8),
        "w": entry("U8", [8], 0, 8),
    },
    "not an entry": {"__metadata__": OURS, "w": [1, 2]},
    "no offsets": {"__metadata__": OURS, "w": {"dtype": "U8", "shape": [8]}},
    "three offsets": {
        "__metadata__": OURS,
        "w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 4, 8]},
    },
}


@pytest.mark.parametrize("header", BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_bad_headers(tmp_path, header):
    write_header(tmp_path / "ckpt", header, bytes(8))
    with pytest.raises(CheckpointError, match=r"cannot load checkpoint .*ckpt"):
        read_native(tmp_path / "ckpt")


def test_a_good_header(tmp_path):
    """The counterpart of the bad ones: the same file without a fault is read."""
    write_header(tmp_path / "ckpt", {"__metadata__": OURS, "w": entry("U8", [8], 0, 8)}, bytes(8))
    assert_equal(read_native(tmp_path / "ckpt")[0], {"w": np.zeros(8, np.uint8)})


def test_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match=r"nothing.*No such file"):
        read_native(tmp_path / "nothing")


def test_truncated_anywhere(tmp_path):
    write_native(tmp_path / "ckpt", tensors(), {"step": 1})
    content = (tmp_path / "ckpt").read_bytes()
    for size in range(len(content)):
        (tmp_path / "cut").write_bytes(content[:size])
        with pytest.raises(CheckpointError):
            read_native(tmp_path / "cut")
    (tmp_path / "cut").write_bytes(content + b"\0")
    with pytest.raises(CheckpointError):
        read_native(tmp_path / "cut")


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_survived(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("damaged") / "ckpt"
    write_native(path, {"w": np.arange(4.0), "b": np.ones(3, np.uint8)}, {"step": 1})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        found, _ = read_native(path)
    except CheckpointError:
        return
    assert sum(array.nbytes for array in found.values()) <= len(content)
