"""Adapter files, written by us and read by onnxruntime, and the other way round."""

from __future__ import annotations

import pathlib

import numpy as np
import onnxruntime
import pytest

from onnxtrain.errors import CheckpointError
from onnxtrain.formats import adapter
from onnxtrain.formats.adapter import read_adapter, write_adapter

TENSORS = {
    "layer.lora_A": np.arange(6, dtype=np.float32).reshape(2, 3),
    "half": np.asarray([0.5, -1.0], np.float16),
    "empty": np.zeros((0, 4), np.float32),
    "double": np.full((1, 1, 1), 3.0, np.float64),
}


def test_onnxruntime_reads_what_was_written(tmp_path: pathlib.Path):
    path = tmp_path / "a.onnx_adapter"
    write_adapter(path, TENSORS, adapter_version=5, model_version=7)
    found = onnxruntime.AdapterFormat.read_adapter(str(path))
    assert (found.get_adapter_version(), found.get_model_version()) == (5, 7)
    assert found.get_format_version() == 1
    values = {name: value.numpy() for name, value in found.get_parameters().items()}
    assert values.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(values[name], array)
        assert values[name].dtype == array.dtype


def test_what_onnxruntime_wrote_is_read(tmp_path: pathlib.Path):
    path = tmp_path / "a.onnx_adapter"
    made = onnxruntime.AdapterFormat()
    value_of = onnxruntime.OrtValue.ortvalue_from_numpy
    given = {name: array for name, array in TENSORS.items() if array.size}
    made.set_parameters({name: value_of(array) for name, array in given.items()})
    made.export_adapter(str(path))
    found = read_adapter(path)
    assert found.keys() == given.keys()
    for name, array in given.items():
        np.testing.assert_array_equal(found[name], array)


def test_single_numbers_are_refused(tmp_path: pathlib.Path):
    with pytest.raises(CheckpointError, match="'number' has no dimension"):
        write_adapter(tmp_path / "a", {"number": np.asarray(3.0, np.float32)})
    assert not list(tmp_path.iterdir())


def test_a_round_trip_keeps_everything(tmp_path: pathlib.Path):
    write_adapter(tmp_path / "a", TENSORS)
    found = read_adapter(tmp_path / "a")
    assert list(found) == list(TENSORS)
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(found[name], array)


def test_other_files_are_refused(tmp_path: pathlib.Path):
    path = tmp_path / "a"
    path.write_bytes(b"\0" * 64)
    with pytest.raises(CheckpointError, match="not an adapter file"):
        read_adapter(path)
    with pytest.raises(CheckpointError, match="cannot load"):
        read_adapter(tmp_path / "missing")


def test_a_file_of_another_version_is_refused(tmp_path: pathlib.Path, monkeypatch):
    monkeypatch.setattr(adapter, "FORMAT_VERSION", 2)
    write_adapter(tmp_path / "a", TENSORS)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="version 2, only 1 can be read"):
        read_adapter(tmp_path / "a")


def test_values_are_aligned(tmp_path: pathlib.Path):
    arrays = {"a" * n: np.full(n, n, np.uint8) for n in range(20, 40)}
    write_adapter(tmp_path / "a", arrays)
    content = (tmp_path / "a").read_bytes()
    assert {content.index(bytes([n] * n)) % 8 for n in range(20, 40)} == {0}


def test_every_truncation_is_noticed(tmp_path: pathlib.Path):
    path = tmp_path / "a"
    write_adapter(path, {"a": np.ones((2, 2), np.float32)})
    whole = path.read_bytes()
    for size in range(len(whole) - 8):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            read_adapter(path)
