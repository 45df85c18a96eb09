"""Reading FlatBuffers that nobody has verified: every offset is checked before it is followed.

Layout: a table starts with a signed offset back to its vtable; the vtable holds its own size, the
size of the table, and per field an offset into the table (0 if the field is absent). Strings,
vectors and tables are reached by an unsigned offset from the field. All numbers are little endian.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from onnxtrain.errors import CheckpointError
from onnxtrain.formats.arrays import Array

_U8 = struct.Struct("<B")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_I64 = struct.Struct("<q")
_F32 = struct.Struct("<f")

_SHARING = 8
"""How many times the size of the file its parts may add up to; honest files share little."""


class Buffer:
    """Bytes with checked access, and a limit against files that refer to one place many times."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self._budget = _SHARING * len(content)

    def number(self, kind: struct.Struct, at: int) -> Any:
        """The number at a position."""
        self._check(at, kind.size)
        return kind.unpack_from(self.content, at)[0]

    def span(self, at: int, length: int) -> slice:
        """Where one part of the file lies."""
        self._check(at, length)
        self._budget -= length
        if self._budget < 0:
            raise CheckpointError("the file is damaged: too many offsets point to the same place")
        return slice(at, at + length)

    def vector(self, at: int, item_size: int) -> slice:
        """Where the items of the vector at a position lie."""
        return self.span(at + 4, self.number(_U32, at) * item_size)

    def _check(self, at: int, length: int) -> None:
        if at < 0 or at + length > len(self.content):
            raise CheckpointError("the file is damaged: an offset points outside of it")

    def root(self) -> Table:
        """The table that the file starts with."""
        return Table(self, self.number(_U32, 0))


class Table:
    """One table; a field is asked for by its number and is None or the default if it is absent."""

    def __init__(self, buffer: Buffer, at: int) -> None:
        self._buffer = buffer
        self._at = at
        self._vtable = at - buffer.number(_I32, at)
        self._vtable_size: int = buffer.number(_U16, self._vtable)
        self._size: int = buffer.number(_U16, self._vtable + 2)
        if self._vtable_size < 4 or self._size < 4:
            raise CheckpointError("the file is damaged: a table has no size")
        buffer.span(self._vtable, self._vtable_size)
        buffer.span(at, self._size)

    def _field(self, slot: int, size: int) -> int | None:
        """Position of a field of ``size`` bytes."""
        entry = 4 + 2 * slot
        if entry + 2 > self._vtable_size:
            return None
        offset: int = self._buffer.number(_U16, self._vtable + entry)
        if offset and (offset < 4 or offset + size > self._size):
            raise CheckpointError("the file is damaged: a field lies outside of its table")
        return self._at + offset if offset else None

    def _number(self, slot: int, kind: struct.Struct, default: float) -> Any:
        at = self._field(slot, kind.size)
        return default if at is None else self._buffer.number(kind, at)

    def _target(self, slot: int) -> int | None:
        """Position that an offset field points to."""
        at = self._field(slot, _U32.size)
        return None if at is None else at + self._buffer.number(_U32, at)

    def flag(self, slot: int) -> bool:
        """A boolean field."""
        return bool(self._number(slot, _U8, 0))

    def int32(self, slot: int, default: int = 0) -> int:
        """A 32-bit field."""
        return int(self._number(slot, _I32, default))

    def int64(self, slot: int, default: int = 0) -> int:
        """A 64-bit field."""
        return int(self._number(slot, _I64, default))

    def float32(self, slot: int) -> float:
        """A floating point field."""
        return float(self._number(slot, _F32, 0.0))

    def string(self, slot: int) -> str | None:
        """A text field."""
        place = self._vector(slot, 1)
        try:
            return None if place is None else self._buffer.content[place].decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"the file is damaged: a text is not UTF-8 ({error})") from error

    def bytes(self, slot: int) -> Array | None:
        """A vector of bytes, copied."""
        place = self._vector(slot, 1)
        if place is None:
            return None
        count = place.stop - place.start
        return np.array(np.frombuffer(self._buffer.content, np.uint8, count, place.start))

    def int64s(self, slot: int) -> tuple[int, ...] | None:
        """A vector of 64-bit numbers."""
        place = self._vector(slot, _I64.size)
        return None if place is None else self._numbers(place, "q")

    def table(self, slot: int) -> Table | None:
        """A table."""
        at = self._target(slot)
        return None if at is None else Table(self._buffer, at)

    def tables(self, slot: int) -> list[Table] | None:
        """A vector of tables."""
        place = self._vector(slot, _U32.size)
        if place is None:
            return None
        offsets = enumerate(self._numbers(place, "I"))
        return [Table(self._buffer, place.start + 4 * index + offset) for index, offset in offsets]

    def _vector(self, slot: int, item_size: int) -> slice | None:
        """Where the items of a vector field lie."""
        at = self._target(slot)
        return None if at is None else self._buffer.vector(at, item_size)

    def _numbers(self, place: slice, kind: str) -> tuple[int, ...]:
        count = (place.stop - place.start) // struct.calcsize(f"<{kind}")
        return struct.unpack_from(f"<{count}{kind}", self._buffer.content, place.start)
