"""Damaged checkpoints are refused with a reason; none crashes or takes much memory."""

from __future__ import annotations

import pathlib
import struct
import tracemalloc

import flatbuffers
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxtrain.errors import CheckpointError
from onnxtrain.formats.odtc import (
    CheckpointData,
    read_checkpoint,
    read_checkpoint_bytes,
    schema,
    write_checkpoint,
)

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "checkpoints"
CHECKPOINTS = ["artifacts", "nominal", "saved", "adamw", "sgd", "external", "types"]


def test_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match=r"nothing.*No such file"):
        read_checkpoint(tmp_path / "nothing")


def test_a_folder(tmp_path):
    with pytest.raises(CheckpointError):
        read_checkpoint(tmp_path)


def refused(content: bytes, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        read_checkpoint_bytes(content)


def test_wrong_identifier_and_version():
    content = (GOLDEN / "artifacts.ckpt").read_bytes()
    refused(b"", "not a checkpoint")
    refused(content[:4] + b"ORTM" + content[8:], "ORTM.*ODTC")
    root = struct.unpack_from("<I", content)[0]
    vtable = root - struct.unpack_from("<i", content, root)[0]
    version = root + struct.unpack_from("<H", content, vtable + 4)[0]
    assert struct.unpack_from("<i", content, version)[0] == 2
    for number in (1, 3):
        changed = content[:version] + struct.pack("<i", number) + content[version + 4 :]
        refused(changed, f"version {number}, only version 2")


def test_missing_or_short_data_file(tmp_path):
    path = tmp_path / "ckpt"
    path.write_bytes((GOLDEN / "external.ckpt").read_bytes())
    with pytest.raises(CheckpointError, match=r"ckpt.*data file, which is missing"):
        read_checkpoint(path)
    values = (GOLDEN / "external.ckpt.data").read_bytes()
    for size in range(len(values)):
        (tmp_path / "ckpt.data").write_bytes(values[:size])
        with pytest.raises(CheckpointError, match="too short"):
            read_checkpoint(path)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_truncated_anywhere(name):
    content = (GOLDEN / f"{name}.ckpt").read_bytes()
    for size in range(len(content) - 8):  # the last bytes may be padding
        with pytest.raises(CheckpointError):
            read_checkpoint_bytes(content[:size])


@pytest.mark.parametrize("name", ["adamw", "types", "nominal"])
def test_any_flipped_bit_is_survived(name):
    """Some flips change a value or a name; all others must be refused, none may crash."""
    content = bytearray((GOLDEN / f"{name}.ckpt").read_bytes())
    refusals = 0
    for bit in range(8 * len(content)):
        content[bit // 8] ^= 1 << bit % 8
        try:
            read_checkpoint_bytes(bytes(content))
        except CheckpointError:
            refusals += 1
        content[bit // 8] ^= 1 << bit % 8
    assert 0 < refusals < 8 * len(content)


@pytest.mark.slow
def test_any_flipped_bit_is_survived_with_a_data_file(tmp_path):
    content = bytearray((GOLDEN / "external.ckpt").read_bytes())
    (tmp_path / "ckpt.data").write_bytes((GOLDEN / "external.ckpt.data").read_bytes())
    refusals = 0
    for bit in range(8 * len(content)):
        content[bit // 8] ^= 1 << bit % 8
        (tmp_path / "ckpt").write_bytes(content)
        try:
            read_checkpoint(tmp_path / "ckpt")
        except CheckpointError:
            refusals += 1
        content[bit // 8] ^= 1 << bit % 8
    assert 0 < refusals < 8 * len(content)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A checkpoint with random bytes in several places, perhaps cut off or extended."""
    content = bytearray((GOLDEN / f"{draw(st.sampled_from(CHECKPOINTS))}.ckpt").read_bytes())
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(content) - 8)) // 4 * 4
        width = draw(st.sampled_from([1, 2, 4, 8]))
        edge = st.sampled_from([0, 1, 2 ** (8 * width) - 1, 2 ** (8 * width - 1)])
        number = draw(st.one_of(edge, st.integers(0, 2 ** (8 * width) - 1)))
        content[at : at + width] = number.to_bytes(width, "little")
    content[4:8] = b"ODTC"
    return bytes(content[: draw(st.integers(8, len(content)))]) + draw(st.binary(max_size=16))


@settings(max_examples=1500, deadline=None)
@given(st.one_of(damaged(), st.binary(max_size=200).map(lambda b: b"\x08\0\0\0ODTC" + b)))
def test_damaged_bytes_are_survived(content):
    tracemalloc.start()
    try:
        read_checkpoint_bytes(content)
    except CheckpointError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**20


def shared_states(groups: int, states: int) -> bytes:
    """A file whose optimizer groups all refer to the same vector of states."""
    builder = flatbuffers.Builder()

    def table(fields: dict[int, int]) -> int:
        builder.StartObject(max(fields) + 1)
        for slot, offset in fields.items():
            builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
        return builder.EndObject()

    def vector(offsets: list[int]) -> int:
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return builder.EndVector()

    def named(number: int, content: int, slot: int) -> int:
        return table({0: builder.CreateString(f"name{number}"), slot: content})

    empty = vector([])
    shared = vector([named(i, empty, schema.ParameterState.MOMENTS) for i in range(states)])
    all_groups = vector([named(i, shared, schema.OptimizerGroup.STATES) for i in range(groups)])
    module = table({schema.ModuleState.TRAINABLE: empty, schema.ModuleState.FROZEN: empty})
    builder.StartObject(len(schema.Checkpoint))
    builder.PrependInt32Slot(schema.Checkpoint.VERSION, schema.VERSION, 0)
    builder.PrependUOffsetTRelativeSlot(schema.Checkpoint.MODULE_STATE, module, 0)
    builder.PrependUOffsetTRelativeSlot(schema.Checkpoint.OPTIMIZER_GROUPS, all_groups, 0)
    builder.Finish(builder.EndObject(), file_identifier=schema.IDENTIFIER)
    return bytes(builder.Output())


def test_a_small_file_cannot_stand_for_a_large_one():
    states = read_checkpoint_bytes(shared_states(1, 300)).optimizer_groups["name0"].states
    assert states == {f"name{i}": {} for i in range(300)}
    refused(shared_states(300, 300), "too many offsets point to the same place")


def test_a_small_data_file_cannot_stand_for_a_large_one(tmp_path):
    path, data = tmp_path / "ckpt", tmp_path / "ckpt.data"
    arrays = {"a": np.zeros((2, 52), np.uint8), "b": np.zeros((4, 26), np.uint8)}
    write_checkpoint(path, CheckpointData(frozen=arrays), external_threshold=0)
    offset_of_b = struct.pack("<q", 104)
    assert path.read_bytes().count(offset_of_b) == 1
    path.write_bytes(path.read_bytes().replace(offset_of_b, bytes(8)))
    data.write_bytes(bytes(104))
    with pytest.raises(CheckpointError, match="tensors overlap"):
        read_checkpoint(path)
