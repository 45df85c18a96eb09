"""Arrays that stay where they are: samples are read, and changed, when they are asked for."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Indices: TypeAlias = npt.NDArray[np.int64]
Change: TypeAlias = Callable[[Array], Array]

LARGE = 64 * 2**20
"""Bytes from which an array stays on the disk."""
PART = 16 * 2**20
"""Bytes that are looked at at a time in a pass over all samples."""


class Rows:
    """Samples behind an index; what is picked becomes an array in memory.

    Args:
        source: What samples are picked from: an array on the disk, images.
        shape: Shape of all samples after the change; that of the source if left out.
        dtype: Their element type after it.
        change: What is done to samples on their way.
        picked: Which samples of the source there are, in which order; None for all.
        told: What tells the first change from others.
    """

    def __init__(
        self,
        source: Any,
        shape: Sequence[int] | None = None,
        dtype: npt.DTypeLike | None = None,
        change: Change | None = None,
        picked: Indices | None = None,
        told: bytes = b"",
    ) -> None:
        sizes: tuple[int, ...] = tuple(source.shape if shape is None else shape)
        self.shape = (len(source) if picked is None else len(picked), *sizes[1:])
        self.dtype: np.dtype[Any] = np.dtype(source.dtype if dtype is None else dtype)
        self._source, self._change, self._picked, self._told = source, change, picked, told

    def __len__(self) -> int:
        return int(self.shape[0])

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all samples."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __getitem__(self, which: slice | Indices) -> Array:
        place = which if self._picked is None else self._picked[which]
        samples = np.array(self._source[place])
        return samples if self._change is None else self._change(samples)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)

    def taken(self, which: Indices) -> Rows:
        """The same with some of the samples, none of which is read."""
        picked = which if self._picked is None else self._picked[which]
        return Rows(self._source, self.shape, self.dtype, self._change, picked, self._told)

    def changed(self, change: Change, shape: Sequence[int], dtype: npt.DTypeLike) -> Rows:
        """The same with another change after those that there are."""
        before = self._change
        both = change if before is None else lambda samples: change(before(samples))
        return Rows(self._source, shape, dtype, both, self._picked, self._told)

    @property
    def identity(self) -> bytes | None:
        """What tells these samples from others without reading them, where the source knows."""
        known: bytes | None = getattr(self._source, "identity", None)
        if known is None:
            return None
        return known + self._told + (b"" if self._picked is None else self._picked.tobytes())


Samples: TypeAlias = "Array | Rows"
_S = TypeVar("_S", Array, Rows, "Array | Rows")


class Joined:
    """Arrays one behind the other, as a source."""

    def __init__(self, arrays: Sequence[Samples]) -> None:
        self._arrays = list(arrays)
        self._ends = np.cumsum([len(array) for array in arrays])
        self.shape: tuple[int, ...] = (int(self._ends[-1]), *arrays[0].shape[1:])
        self.dtype = np.result_type(*(array.dtype for array in arrays))

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, which: slice | Indices) -> Array:
        wanted = np.arange(len(self))[which]
        found = np.empty((len(wanted), *self.shape[1:]), self.dtype)
        owner = np.searchsorted(self._ends, wanted, side="right")
        for index in np.unique(owner):
            mine = owner == index
            array = self._arrays[index]
            found[mine] = array[wanted[mine] - (self._ends[index] - len(array))]
        return found


class Beside:
    """Columns side by side, as a source."""

    def __init__(self, columns: Sequence[Samples]) -> None:
        self._columns = list(columns)
        self.shape = (len(columns[0]), len(columns))
        self.dtype = np.result_type(*(column.dtype for column in columns))

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, which: slice | Indices) -> Array:
        return np.stack([column[which] for column in self._columns], axis=1).astype(self.dtype)


def joined(arrays: Sequence[Samples]) -> Samples:
    """Arrays one behind the other; in memory if all of them are.

    Raises:
        ValueError: if their samples have different shapes.
    """
    if len(arrays) == 1:
        return arrays[0]
    if not any(isinstance(array, Rows) for array in arrays):
        return np.concatenate(arrays)  # type: ignore[arg-type]
    if len({array.shape[1:] for array in arrays}) > 1:
        raise ValueError(f"samples of shapes {', '.join(str(list(a.shape[1:])) for a in arrays)}")
    return Rows(Joined(arrays))


def beside(columns: Sequence[Samples]) -> Samples:
    """Columns side by side; in memory if all of them are."""
    if not any(isinstance(column, Rows) for column in columns):
        return np.stack(columns, axis=1)  # type: ignore[arg-type]
    return Rows(Beside(columns))


def kept(array: Array) -> Samples:
    """An array on the disk as it is if it is large, in memory otherwise."""
    return Rows(array) if array.nbytes > LARGE else np.array(array)


def taken(array: _S, which: Indices) -> _S:
    """Some samples of an array."""
    return array.taken(which) if isinstance(array, Rows) else array[which]


def parts(array: Samples) -> Iterator[Array]:
    """All samples in order: at once, or in parts of those that are not in memory."""
    if not isinstance(array, Rows):
        yield array
        return
    count = max(1, PART // max(1, array.nbytes // max(1, len(array))))
    for first in range(0, len(array), count):
        yield array[first : first + count]


class Spill:
    """A file without a name that takes samples part by part, to be read as one array."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives with the array
        self._count = 0

    def add(self, part: Array) -> None:
        """Append samples, all of one shape and type."""
        self._file.write(np.ascontiguousarray(part).data)
        self._count += len(part)

    def array(self, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
        """All samples, of which ``shape`` is the shape of one."""
        self._file.flush()
        return np.memmap(self._file, dtype, "r", shape=(self._count, *shape))
