"""Reading FlatBuffers that nobody has verified: every offset is checked before it is followed.

Layout: a table starts with a signed offset back to its vtable; the vtable holds its own size, the
size of the table, and per field an offset into the table (0 if the field is absent). Strings,
vectors and tables are reached by an unsigned offset from the field. All numbers are little endian.
"""

from __future__ import annotations

import struct
from typing import Any

from onnxtrain.errors import CheckpointError

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
        self._view = memoryview(content)
        self._budget = _SHARING * len(content)

    def number(self, kind: struct.Struct, at: int) -> Any:
        """The number at a position."""
        return kind.unpack(self._bytes(at, kind.size))[0]

    def span(self, at: int, length: int) -> memoryview:
        """The bytes of one part of the file."""
        content = self._bytes(at, length)
        self._budget -= length
        if self._budget < 0:
            raise CheckpointError("the file is damaged: too many offsets point to the same place")
        return content

    def _bytes(self, at: int, length: int) -> memoryview:
        if at < 0 or at + length > len(self._view):
            raise CheckpointError("the file is damaged: an offset points outside of it")
        return self._view[at : at + length]

    def vector(self, at: int, item_size: int) -> memoryview:
        """The items of the vector at a position."""
        return self.span(at + 4, self.number(_U32, at) * item_size)

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
        content = self.bytes(slot)
        try:
            return None if content is None else str(content, "utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"the file is damaged: a text is not UTF-8 ({error})") from error

    def bytes(self, slot: int) -> memoryview | None:
        """A vector of bytes."""
        at = self._target(slot)
        return None if at is None else self._buffer.vector(at, 1)

    def int64s(self, slot: int) -> tuple[int, ...] | None:
        """A vector of 64-bit numbers."""
        at = self._target(slot)
        if at is None:
            return None
        return tuple(value for (value,) in _I64.iter_unpack(self._buffer.vector(at, _I64.size)))

    def table(self, slot: int) -> Table | None:
        """A table."""
        at = self._target(slot)
        return None if at is None else Table(self._buffer, at)

    def tables(self, slot: int) -> list[Table] | None:
        """A vector of tables."""
        at = self._target(slot)
        if at is None:
            return None
        offsets = _U32.iter_unpack(self._buffer.vector(at, _U32.size))
        return [
            Table(self._buffer, at + 4 + 4 * index + offset)
            for index, (offset,) in enumerate(offsets)
        ]
