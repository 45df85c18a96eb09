"""Checkpoints of the reference are read, ours round-trip, and damaged ones are refused."""

from __future__ import annotations

import dataclasses
import pathlib

import ml_dtypes
import numpy as np
import pytest

from onnxtrain.errors import CheckpointError, SaveError
from onnxtrain.formats.odtc import (
    CheckpointData,
    OptimizerGroup,
    read_checkpoint,
    read_checkpoint_bytes,
    write_checkpoint,
    writer,
)
from onnxtrain.formats.odtc.data import ELEMENT_TYPES

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "checkpoints"
CHECKPOINTS = ["artifacts", "nominal", "saved", "adamw", "sgd", "external", "types"]
EPSILON = np.finfo(np.float32).eps


def expected_arrays(name: str, kind: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        return {k.removeprefix(f"{kind}/"): arrays[k] for k in arrays if k.startswith(f"{kind}/")}


def assert_equal(actual: np.ndarray, expected: np.ndarray) -> None:
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert actual.tobytes() == expected.tobytes()


def assert_same(actual: CheckpointData, expected: CheckpointData) -> None:
    """Equal, order included."""

    def flat(data: CheckpointData) -> list[tuple[object, np.ndarray]]:
        moments = [
            ((group, parameter, moment), array)
            for group, state in data.optimizer_groups.items()
            for parameter, arrays in state.states.items()
            for moment, array in arrays.items()
        ]
        return [*data.trainable.items(), *data.frozen.items(), *moments]

    assert [k for k, _ in flat(actual)] == [k for k, _ in flat(expected)]
    for (_, a), (_, b) in zip(flat(actual), flat(expected), strict=True):
        assert_equal(a, b)
    assert [
        (name, group.step, group.initial_learning_rate, list(group.states))
        for name, group in actual.optimizer_groups.items()
    ] == [
        (name, group.step, group.initial_learning_rate, list(group.states))
        for name, group in expected.optimizer_groups.items()
    ]
    assert actual.properties == expected.properties
    assert actual.nominal == expected.nominal


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_parameters_of_the_reference(name):
    data = read_checkpoint(GOLDEN / f"{name}.ckpt")
    trainable, frozen = (expected_arrays(name, kind) for kind in ("trainable", "frozen"))
    assert data.trainable.keys() == trainable.keys()
    for key, value in trainable.items():
        assert_equal(data.trainable[key], value)
    if name == "types":
        half = data.frozen.pop("bfloat16")
        assert_equal(half, np.array([1.5, -2.0, 3.0], ml_dtypes.bfloat16))
    assert data.frozen.keys() == frozen.keys()
    for key, value in frozen.items():
        assert_equal(data.frozen[key], value)
    assert data.nominal == (name == "nominal")


def test_generated_parameters_keep_their_order():
    data = read_checkpoint(GOLDEN / "artifacts.ckpt")
    assert list(data.trainable) == ["fc1.weight", "fc1.bias", "fc2.weight"]
    assert list(data.frozen) == ["fc2.bias"]


@pytest.mark.parametrize("name", ["adamw", "sgd", "external"])
def test_optimizer_state_of_the_reference(name):
    data = read_checkpoint(GOLDEN / f"{name}.ckpt")
    (group,) = data.optimizer_groups.values()
    assert list(data.optimizer_groups) == ["group0"]
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        assert group.step == arrays["step"]
    assert group.initial_learning_rate == np.float32(0.001)
    moments = expected_arrays(name, "moment")
    found = {f"{p}/{m}": array for p, state in group.states.items() for m, array in state.items()}
    assert found.keys() == moments.keys()
    for key, value in moments.items():
        # A sum of three float32 products, against float64: a few roundings of the largest term.
        np.testing.assert_allclose(
            found[key], value, rtol=0, atol=4 * EPSILON * np.abs(value).max()
        )


@pytest.mark.parametrize("name", ["artifacts", "nominal", "saved", "types"])
def test_no_optimizer_state(name):
    assert read_checkpoint(GOLDEN / f"{name}.ckpt").optimizer_groups == {}


def test_properties_of_the_reference():
    properties = read_checkpoint(GOLDEN / "adamw.ckpt").properties
    expected = {key: value.item() for key, value in expected_arrays("adamw", "property").items()}
    assert properties == expected
    assert {key: type(value) for key, value in properties.items()} == {
        "epoch": int,
        "best": int,
        "accuracy": float,
        "tag": str,
    }
    assert read_checkpoint(GOLDEN / "sgd.ckpt").properties == {}


@pytest.mark.parametrize("threshold", [0, 10**9])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_rewritten_checkpoints_hold_the_same(tmp_path, name, threshold):
    data = read_checkpoint(GOLDEN / f"{name}.ckpt")
    write_checkpoint(tmp_path / "ckpt", data, external_threshold=threshold)
    assert_same(read_checkpoint(tmp_path / "ckpt"), data)


def sample() -> CheckpointData:
    rng = np.random.default_rng(0)
    weights = {"z": rng.normal(size=(5, 7)), "a": rng.normal(size=3).astype(np.float32)}
    states = {k: {"momentum0": v * 2, "momentum1": v * v} for k, v in weights.items()}
    return CheckpointData(
        trainable=weights,
        frozen={"steps": np.arange(12).reshape(3, 4), "scalar": np.array(True)},
        optimizer_groups={"group0": OptimizerGroup(2**40, 0.125, states)},
        properties={"i": -3, "f": 0.5, "s": "äöü", "zero": 0, "empty": ""},
    )


@pytest.mark.parametrize("threshold", [0, 10**9])
def test_round_trip(tmp_path, threshold):
    path = tmp_path / "ckpt"
    write_checkpoint(path, sample(), external_threshold=threshold)
    assert path.with_name("ckpt.data").exists() == (threshold == 0)
    data = read_checkpoint(path)
    assert list(data.trainable) == ["z", "a"]
    data.properties = {key: data.properties[key] for key in sample().properties}
    assert_same(data, sample())


@pytest.mark.parametrize("dtype", ELEMENT_TYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (3, 33)])
@pytest.mark.parametrize("threshold", [0, 10**9])
def test_every_element_type(tmp_path, dtype, shape, threshold):
    rng = np.random.default_rng(1)
    array = np.asarray(rng.integers(0, 2, size=shape)).astype(dtype)
    data = CheckpointData(frozen={"before": np.zeros(65, np.uint8), "x": array})
    write_checkpoint(tmp_path / "ckpt", data, external_threshold=threshold)
    found = read_checkpoint(tmp_path / "ckpt").frozen["x"]
    assert_equal(found, array)
    assert found.flags.writeable and found.flags.aligned


def test_nothing(tmp_path):
    write_checkpoint(tmp_path / "ckpt", CheckpointData())
    assert_same(read_checkpoint(tmp_path / "ckpt"), CheckpointData())


def test_arrays_in_any_order_of_memory_and_bytes(tmp_path):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    arrays = {"t": base.T, "step": base[::2, ::3], "big": base.astype(">f4"), "f": base.copy("F")}
    for threshold in (0, 10**9):
        write_checkpoint(
            tmp_path / "ckpt", CheckpointData(trainable=arrays), external_threshold=threshold
        )
        found = read_checkpoint(tmp_path / "ckpt").trainable
        for name, array in arrays.items():
            assert found[name].dtype == np.float32
            np.testing.assert_array_equal(found[name], array)


def test_nominal_keeps_names_and_types_only(tmp_path):
    data = dataclasses.replace(sample(), nominal=True, optimizer_groups={})
    write_checkpoint(tmp_path / "ckpt", data, external_threshold=0)
    found = read_checkpoint(tmp_path / "ckpt")
    assert found.nominal
    assert {k: (v.dtype, v.shape) for k, v in found.trainable.items()} == {
        "z": (np.float64, (0,)),
        "a": (np.float32, (0,)),
    }
    assert not (tmp_path / "ckpt.data").exists()


def test_numpy_numbers_as_properties(tmp_path):
    values = {"b": True, "i": np.int32(4), "n": np.bool_(True), "f": np.float64(0.25)}
    write_checkpoint(tmp_path / "ckpt", CheckpointData(properties=values))
    assert read_checkpoint(tmp_path / "ckpt").properties == {"b": 1, "i": 4, "n": 1, "f": 0.25}


def test_read_from_memory():
    data = read_checkpoint_bytes((GOLDEN / "adamw.ckpt").read_bytes())
    assert_same(data, read_checkpoint(GOLDEN / "adamw.ckpt"))
    with pytest.raises(CheckpointError, match="data file, which is missing"):
        read_checkpoint_bytes((GOLDEN / "external.ckpt").read_bytes())


def test_saving_does_not_touch_what_was_loaded(tmp_path):
    path = tmp_path / "ckpt"
    write_checkpoint(path, sample(), external_threshold=0)
    loaded = read_checkpoint(path)
    loaded.trainable["z"] += 1
    write_checkpoint(path, loaded, external_threshold=0)
    write_checkpoint(path, CheckpointData(trainable={"q": np.zeros(99)}), external_threshold=0)
    np.testing.assert_array_equal(loaded.trainable["z"], sample().trainable["z"] + 1)
    np.testing.assert_array_equal(loaded.frozen["steps"], sample().frozen["steps"])


def test_tensors_in_a_data_file_are_aligned(tmp_path):
    arrays = {name: np.full(65, n, np.uint8) for n, name in enumerate("abc", start=1)}
    write_checkpoint(tmp_path / "ckpt", CheckpointData(trainable=arrays), external_threshold=0)
    content = (tmp_path / "ckpt.data").read_bytes()
    assert [content.index(bytes([n])) for n in (1, 2, 3)] == [0, 72, 144]


def test_a_file_in_which_a_parameter_is_both_trained_and_frozen_is_refused(tmp_path):
    data = CheckpointData(trainable={"first": np.ones(2)}, frozen={"other": np.ones(2)})
    write_checkpoint(tmp_path / "ckpt", data)
    content = (tmp_path / "ckpt").read_bytes().replace(b"other", b"first")
    with pytest.raises(CheckpointError, match="it has 'first' twice"):
        read_checkpoint_bytes(content)


@pytest.mark.parametrize(("place", "message"), [(-8, "too short"), (0, "tensors overlap")])
def test_places_in_a_data_file_that_cannot_be(tmp_path, monkeypatch, place, message):
    def reserve(self, array):
        self._data = [(0, array)]
        return place

    monkeypatch.setattr(writer._Encoder, "_reserve", reserve)
    data = CheckpointData(trainable={"a": np.ones(9), "b": np.ones(9)})
    write_checkpoint(tmp_path / "ckpt", data, external_threshold=0)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(tmp_path / "ckpt")


def test_a_data_file_that_is_not_needed_any_more_goes(tmp_path):
    path = tmp_path / "ckpt"
    write_checkpoint(path, sample(), external_threshold=0)
    write_checkpoint(path, sample())
    assert [p.name for p in tmp_path.iterdir()] == ["ckpt"]


@pytest.mark.parametrize("before", [None, b"something else"])
def test_a_data_file_of_somebody_else_stays(tmp_path, before):
    path = tmp_path / "ckpt"
    if before is None:
        write_checkpoint(path, sample())
    else:
        path.write_bytes(before)
    (tmp_path / "ckpt.data").write_bytes(b"mine")
    write_checkpoint(path, sample())
    assert (tmp_path / "ckpt.data").read_bytes() == b"mine"


REFUSED = {
    "text": CheckpointData(trainable={"w": np.array(["a"])}),
    "object": CheckpointData(trainable={"w": np.array([None])}),
    "int4": CheckpointData(trainable={"w": np.zeros(3, ml_dtypes.int4)}),
    "both": CheckpointData(trainable={"w": np.zeros(1)}, frozen={"w": np.zeros(1)}),
    "large int": CheckpointData(properties={"w": 2**63}),
    "large float": CheckpointData(properties={"w": 1e39}),
    "list": CheckpointData(properties={"w": [1]}),
    "name": CheckpointData(properties={"\ud800w": 1}),
    "step": CheckpointData(optimizer_groups={"w": OptimizerGroup(step=2**63)}),
    "rate": CheckpointData(optimizer_groups={"w": OptimizerGroup(initial_learning_rate=1e39)}),
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_what_the_format_cannot_hold(tmp_path, data):
    path = tmp_path / "ckpt"
    path.write_bytes(b"old")
    with pytest.raises(CheckpointError, match=r"(?s)ckpt.*w") as caught:
        write_checkpoint(path, data)
    assert "cannot save checkpoint" in str(caught.value)
    assert path.read_bytes() == b"old"


def test_a_refusal_of_the_system(tmp_path):
    with pytest.raises(SaveError, match="missing"):
        write_checkpoint(tmp_path / "missing" / "ckpt", sample())
