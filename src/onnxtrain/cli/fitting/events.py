"""TensorBoard's event files: records of a length, a message and their checksums.

A record is ``length(8) crc(length) data crc(data)``; data is a protobuf ``Event`` with the time (1,
double), the step (2, int64) and the version (3, string) or a summary (5, message).
"""

from __future__ import annotations

import functools
import pathlib
import struct
import time

from onnxtrain.cli.fitting.recording import Entry
from onnxtrain.errors import SaveError

_POLYNOMIAL = 0x82F63B78
_MASK = 0xA282EAD8
_TAGS = {"loss": "loss/training", "mean_loss": "loss/epoch", "lr": "learning rate"}


class EventFile:
    """Writes scalars for TensorBoard.

    Args:
        folder: Where the file goes; it is made.

    Raises:
        SaveError: if it cannot be written.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        name = f"events.out.tfevents.{int(time.time())}.onnxtrain"
        path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            count = 0
            while path.exists():
                count += 1
                path = folder / f"{name}.{count}"
            self._file = path.open("wb")
        except OSError as error:
            raise SaveError(
                f"cannot write into '{folder}': {error.strerror}\n"
                "  name a folder, say  --tensorboard events"
            ) from error
        self._write(_text(3, b"brain.Event:2"))

    def begin(self, position: int) -> None:
        """Nothing: a continued run has a file of its own, and later values of a step win."""

    def add(self, entry: Entry) -> None:
        """Write the figures of an update as scalars."""
        import torch

        from onnxtrain.kernels.summary import summary_scalar

        figures = {_tag(k): v for k, v in entry.items() if isinstance(v, float)}
        summary = summary_scalar(torch.tensor(list(figures.values())), tags=tuple(figures)).item()
        self._write(b"\x10" + _varint(entry["step"]) + _text(5, summary))
        self._file.flush()

    def _write(self, body: bytes) -> None:
        data = b"\x09" + struct.pack("<d", time.time()) + body
        length = struct.pack("<Q", len(data))
        try:
            self._file.write(length + _checksum(length) + data + _checksum(data))
        except OSError as error:
            raise SaveError(f"cannot write '{self._file.name}': {error.strerror}") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _tag(name: str) -> str:
    """``val_loss`` becomes ``loss/validation``, so that both losses share a chart."""
    if name.startswith("val_"):
        return f"{name.removeprefix('val_')}/validation"
    return _TAGS.get(name, name)


def _text(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


@functools.cache
def _table() -> list[int]:
    """What each byte adds to the checksum (CRC-32C)."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


def _checksum(data: bytes) -> bytes:
    """CRC-32C, turned by 15 bits and shifted by a constant, as the format wants it."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    masked = ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
    return struct.pack("<I", masked)
